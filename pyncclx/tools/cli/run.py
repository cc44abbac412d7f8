"""python -m pyncclx run: run an mpi4py program on pyncclx's communicators.

The program needs no change: every `from mpi4py import MPI` imports `pyncclx.MPI`. Calls on device arrays return when
they are complete, as in MPI. With PYNCCLX_BLOCKING=stream in the environment, they return when they are enqueued. MPI
is initialised when the program imports it, according to `mpi4py.rc`, or by the program itself. If a rank ends by an
exception, all ranks end. Processes that the program spawns with Python run under this command too.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import mpi4py
from mpi4py.run import run_command_line, set_abort_status

from ...system import driver, settings

_PACKAGE = "pyncclx"
# Switches of programs that copy device arrays through the host unless MPI is GPU-aware. Their own checks cannot
# recognize pyncclx, or are turned off. These environment variables are set before the program starts.
VARIABLES = {"PYLOPS_MPI_CUDA_AWARE": "1"}
# These module attributes are changed after the module's import.
ATTRIBUTES = {"heat.core._config": {"GPU_AWARE_MPI": True}}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    parser.add_argument("--report", action="store_true", help="at the end, print what ran native, staged, on the host")
    parser.add_argument(
        "--gpu-aware",
        action="store_true",
        help="programs that stage device arrays themselves give them to MPI: heat, and pylops-mpi",
    )
    parser.add_argument("--jax", action="store_true", help="import mpi4jax imports pyncclx.jax")
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("-m", dest="kind", action="store_const", const="-m", help="the program is a module")
    kinds.add_argument("-c", dest="kind", action="store_const", const="-c", help="the program is code")
    parser.add_argument("program", help="file, module with -m, code with -c, or - for code on standard input")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the program")


def run(arguments: argparse.Namespace) -> None:
    """Run the program that the command line names."""
    settings.BLOCKING.set_default("host")
    if arguments.gpu_aware:
        _switch_on()
    if arguments.jax:
        sys.meta_path.insert(0, _Mpi4jax())
    swap = Swap(report=arguments.report, words=_options(arguments))
    swap.begin()
    try:
        run_command_line(_words(arguments))
    except BaseException as error:
        set_abort_status(error)
        if isinstance(error, SystemExit) and not error.code:
            swap.end()
        raise
    swap.end()


def _words(arguments: argparse.Namespace) -> list[str]:
    """Return the command line for `python -m mpi4py`.

    The file name is made absolute, like Python's ``__file__``.
    """
    program = arguments.program
    if arguments.kind is not None:
        return [arguments.kind, program, *arguments.arguments]
    return [program if program == "-" else os.path.abspath(program), *arguments.arguments]


def _options(arguments: argparse.Namespace) -> list[str]:
    """Return the options for processes that the program spawns."""
    return [f"--{name}" for name in ("gpu-aware", "jax") if getattr(arguments, name.replace("-", "_"))]


def _switch_on() -> None:
    """Set the variables that the user has not set, and the attributes of modules.

    Modules are changed when they are imported.
    """
    for name, value in VARIABLES.items():
        settings.set_foreign(name, value)
    sys.meta_path.insert(0, _Finder())


class _Finder(importlib.abc.MetaPathFinder):
    """Finder that changes the modules in `ATTRIBUTES`; later finders find them."""

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


class _Mpi4jax(importlib.abc.MetaPathFinder):
    """Finder that finds pyncclx.jax under the name mpi4jax."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "mpi4jax":
            return None
        return importlib.machinery.ModuleSpec(name, _Loaded(importlib.import_module(f"{_PACKAGE}.jax")))


# ---- the swap of mpi4py.MPI ------------------------------------------------------------------------------------------

# mpi4py.MPI is not loaded before the program imports it: loading initializes MPI according to `mpi4py.rc`, which the
# program may set first.


class Swap:
    """Finder that swaps `mpi4py.MPI` for `pyncclx.MPI` at the first import of either.

    Parameters
    ----------
    report : bool
        Whether to count the operations of the program after the swap.
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
        # importlib restores the entry.
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
    """Loader of a module that has already been loaded."""

    def __init__(self, module: ModuleType) -> None:
        self._module, self._spec = module, module.__spec__

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """Return the module."""
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        """Restore the spec with which the module was loaded; importlib has replaced it."""
        module.__spec__ = self._spec


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
