"""Swap of `mpi4py.MPI` for `pyncclx.MPI` when a program imports it.

mpi4py.MPI is not loaded before, because loading initializes MPI by `mpi4py.rc`, which the program sets first.
"""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import mpi4py

from ...system import driver, settings

_PACKAGE = __package__.partition(".")[0]


class Swap:
    """Finder that swaps `mpi4py.MPI` for `pyncclx.MPI` at the first import of either.

    Parameters
    ----------
    report : bool
        Whether to count the operations of the program from then on.
    words : sequence of str
        Options of `run` for processes that the program spawns.
    """

    def __init__(self, *, report: bool = False, words: Sequence[str] = ()) -> None:
        self._report, self._words = report, words
        self._recorder: Any = None
        self._waits = False

    def begin(self) -> None:
        """Make the next import of `mpi4py.MPI` import `pyncclx.MPI`.

        This includes processes that the program spawns.
        """
        self._waits = True
        sys.meta_path.insert(0, self)

    def end(self) -> None:
        """Print the report (collective)."""
        if self._recorder is not None:
            self._recorder.print()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Load all modules, in the necessary order, at the first import that needs MPI."""
        if not self._waits or (name != "mpi4py.MPI" and not name.startswith(f"{_PACKAGE}.")):
            return None
        self._waits = False
        self.swap()
        # importlib puts it back.
        module = sys.modules.pop(name, None)
        return None if module is None else importlib.machinery.ModuleSpec(name, _Loaded(module))

    def swap(self) -> None:
        """Load mpi4py's module and pyncclx's modules that import it, then swap them."""
        importlib.import_module("mpi4py.MPI")
        importlib.import_module(f"{_PACKAGE}.communicator.public")
        ours: Any = importlib.import_module(f"{_PACKAGE}.MPI")
        importlib.import_module(f"{_PACKAGE}.communicator.spawned").RUNNER.set(("-m", _PACKAGE, "run", *self._words))
        if self._report:
            self._recorder = importlib.import_module(f"{_PACKAGE}.tools.observe.recorder").Recorder()
        sys.modules["mpi4py.MPI"] = mpi4py.MPI = ours
        if settings.DEVICE.get() != "host" and driver.count() > 1:
            _once_initialised(ours, ours.COMM_WORLD.select_device)


class _Loaded(importlib.abc.Loader):
    """Loader of a module that has been loaded already."""

    def __init__(self, module: ModuleType) -> None:
        self._module, self._spec = module, module.__spec__

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """Return the module."""
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        """Restore the spec with which the module was loaded; importlib has replaced it."""
        module.__spec__ = self._spec


def swap_modules() -> None:
    """Swap the modules now."""
    Swap().swap()


def _once_initialised(module: Any, function: Callable[[], object]) -> None:
    """Call a function now, or when the program has initialized MPI."""
    if module.Is_initialized():
        function()
        return
    for name in ("Init", "Init_thread"):
        setattr(module, name, _followed_by(function, getattr(module, name)))


def _followed_by(function: Callable[[], object], initialise: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(initialise)
    def both(*args: Any, **kwargs: Any) -> Any:
        result = initialise(*args, **kwargs)
        function()
        return result

    return both
