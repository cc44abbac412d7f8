"""`pyncclx.MPI` in the place of `mpi4py.MPI`, from the moment when a program imports it.

Until then mpi4py.MPI is not loaded, since loading it initialises MPI by `mpi4py.rc`: the program sets that first.
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

from ..system import driver, settings

_PACKAGE = __package__.partition(".")[0]


class Swap:
    """Finds `mpi4py.MPI`, and ours, at the first import of any of them, and swaps them.

    Parameters
    ----------
    report : bool
        Count the operations of the program from then on.
    words : sequence of str
        Options of `run` for processes that the program spawns.
    """

    def __init__(self, *, report: bool = False, words: Sequence[str] = ()) -> None:
        self._report, self._words = report, words
        self._recorder: Any = None
        self._waits = False

    def begin(self) -> None:
        """Let the next import of `mpi4py.MPI` import `pyncclx.MPI`, here and in processes that the program spawns."""
        self._waits = True
        sys.meta_path.insert(0, self)

    def end(self) -> None:
        """Print the report. Collective."""
        if self._recorder is not None:
            self._recorder.print()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Load everything at the first import of a module that needs MPI, in the order in which it has to be."""
        if not self._waits or (name != "mpi4py.MPI" and not name.startswith(f"{_PACKAGE}.")):
            return None
        self._waits = False
        self.swap()
        module = sys.modules.pop(name, None)  # which importlib puts back
        return None if module is None else importlib.machinery.ModuleSpec(name, _Loaded(module))

    def swap(self) -> None:
        """Load mpi4py's module, then all of ours that import it, and put ours in its place."""
        importlib.import_module("mpi4py.MPI")
        importlib.import_module(f"{_PACKAGE}.communicator.public")
        ours: Any = importlib.import_module(f"{_PACKAGE}.MPI")
        importlib.import_module(f"{_PACKAGE}.communicator.spawned").RUNNER.set(("-m", _PACKAGE, "run", *self._words))
        if self._report:
            self._recorder = importlib.import_module(f"{_PACKAGE}.observe.recorder").Recorder()
        sys.modules["mpi4py.MPI"] = mpi4py.MPI = ours
        if settings.DEVICE.get() != "host" and driver.count() > 1:
            _once_initialised(ours, ours.COMM_WORLD.select_device)


class _Loaded(importlib.abc.Loader):
    """The loader of a module that has been loaded already."""

    def __init__(self, module: ModuleType) -> None:
        self._module, self._spec = module, module.__spec__

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """Return the module."""
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        """Give it back the spec with which it was loaded, which importlib has replaced."""
        module.__spec__ = self._spec


def swap_modules() -> None:
    """Swap them now."""
    Swap().swap()


def _once_initialised(module: Any, function: Callable[[], object]) -> None:
    """Call a function now, or when the program has initialised MPI."""
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
