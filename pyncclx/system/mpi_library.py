"""The MPI library of this process: its file, and what it can do."""

from __future__ import annotations

import atexit
import ctypes
import functools
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakSet

from mpi4py import MPI

from . import settings
from .process import PerProcess, in_children

T = TypeVar("T")
MEMORY_KINDS = "mpi_memory_alloc_kinds"  # the info key of MPI 4.1
_MPICH_CUDA = 0  # MPIX_GPU_SUPPORT_CUDA
_ULFM_ENABLED = "OMPI_MCA_mpi_ft_enable"  # Open MPI's parameter, set by its mpirun for the ranks


def path() -> str | None:
    """Return the file of the MPI library that mpi4py has loaded; None if unknown."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        found = re.search(r"/\S*/libmpi(?:_abi|_cray|_gnu\S*|ch)?\.so\S*$", line)
        if found:
            return found.group()
    return None


@functools.cache
def is_cuda_aware() -> bool | None:
    """Return whether the MPI library accepts device arrays; None if unknown.

    The answer is in an info key of MPI 4.1; for older libraries, a query function of MPICH or Open MPI returns it.
    """
    kinds = MPI.COMM_WORLD.Get_info().get(MEMORY_KINDS)
    if kinds is not None:
        return any(kind.split(":")[0] == "cuda" for kind in kinds.split(","))
    file = path()
    library: Any = ctypes.CDLL(file) if file else None
    if hasattr(library, "MPIX_GPU_query_support"):
        flag = ctypes.c_int(0)
        status = library.MPIX_GPU_query_support(_MPICH_CUDA, ctypes.byref(flag))
        return bool(flag.value) if status == 0 else None
    if hasattr(library, "MPIX_Query_cuda_support"):
        return bool(library.MPIX_Query_cuda_support())
    return None


@functools.cache
def has_ulfm() -> bool:
    """Return whether MPI has working ULFM calls; those of MPICH 5.0 end the program."""
    return MPI.get_vendor()[0] == "Open MPI" and MPI.get_vendor()[1] >= (5,)


@functools.cache
def goes_on_after_failures() -> bool:
    """Return whether MPI continues when ranks fail."""
    return has_ulfm() and settings.foreign(_ULFM_ENABLED) in ("1", "true", "yes")


def before_finalize(function: Callable[[], None]) -> None:
    """Register a function to be called before MPI is finalized, possibly twice.

    It is called at exit, and when the program calls MPI.Finalize.
    """
    _before_finalize.append(function)
    keyval = MPI.Comm.Create_keyval(delete_fn=lambda *_: function())
    # MPI.Finalize first deletes the attributes of COMM_SELF.
    MPI.COMM_SELF.Set_attr(keyval, None)


def ended_before_finalize(end: Callable[[T], object]) -> PerProcess[WeakSet[T]]:
    """Return a weak set; before MPI is finalized, `end` is called for its objects."""

    def make() -> WeakSet[T]:
        objects = WeakSet[T]()

        def end_all() -> None:
            for each in list(objects):
                end(each)

        before_finalize(end_all)
        return objects

    return PerProcess(make)


_before_finalize: list[Callable[[], None]] = []


def _at_exit() -> None:
    for function in reversed(_before_finalize):
        function()


# atexit runs functions in the reverse order of registration. So the program's functions run first, and may communicate.
atexit.register(_at_exit)


_children: list[bool] = []  # one item in a process that a rank has forked


def _begin_child() -> None:
    _before_finalize.clear()
    if MPI.Is_initialized():
        _children.append(True)


in_children(_begin_child)


def is_child() -> bool:
    """Return whether this process was forked by a rank, and so is no rank itself.

    Destructors must check this before they use MPI, a device or shared memory, which belong to the parent.
    """
    return bool(_children)


def mpi_is_gone() -> bool:
    """Return whether MPI must not be called: it is finalized, or this is a fork."""
    return is_child() or MPI.Is_finalized()


def with_cuda(kinds: str | None) -> str:
    """Return MPI's memory kinds (a list with commas, or None) with CUDA's added."""
    given = (kinds or "mpi,system").split(",")
    return ",".join(dict.fromkeys([*given, "cuda", "cuda:host", "cuda:device", "cuda:managed"]))


def mpiexec() -> str | None:
    """Return the path of an mpiexec; None if there is none."""
    beside = Path(sys.executable).with_name("mpiexec")  # wheels of MPI libraries install it here
    return str(beside) if beside.exists() else shutil.which("mpiexec")
