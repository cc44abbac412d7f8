"""Switches of programs that stage device arrays unless MPI is GPU-aware.

Their own checks are for other MPI libraries, or are turned off. `python -m pyncclx run --gpu-aware` sets the switches.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from ...system import settings

# Environment variables that a program reads; they are set before the program begins.
VARIABLES = {"PYLOPS_MPI_CUDA_AWARE": "1"}
# Attributes that a module sets by itself; they are changed after its import.
ATTRIBUTES = {"heat.core._config": {"GPU_AWARE_MPI": True}}


def switch_on() -> None:
    """Set the variables, unless the user has, and the attributes of modules.

    Modules change when they are imported.
    """
    for name, value in VARIABLES.items():
        settings.set_foreign(name, value)
    sys.meta_path.insert(0, _Finder())


class _Finder(importlib.abc.MetaPathFinder):
    """Finder of the modules in `ATTRIBUTES`, by the finders after it."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in ATTRIBUTES:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Switching(spec.loader)
        return spec


class _Switching(importlib.abc.Loader):
    """Loader that loads a module by another loader, and then changes its attributes."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        for name, value in ATTRIBUTES[module.__name__].items():
            setattr(module, name, value)
