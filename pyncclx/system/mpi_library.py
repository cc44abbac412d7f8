"""The MPI library of this process: its file, and whether it takes device arrays."""

from __future__ import annotations

import atexit
import ctypes
import functools
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mpi4py import MPI

from .process import in_children

MEMORY_KINDS = "mpi_memory_alloc_kinds"  # the info key of MPI 4.1
_MPICH_CUDA = 0  # MPIX_GPU_SUPPORT_CUDA


def path() -> str | None:
    """Return the file of the MPI library that mpi4py has loaded; None if unknown."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        found = re.search(r"/\S*/libmpi(?:_abi|_cray|_gnu\S*|ch)?\.so\S*$", line)
        if found:
            return found.group()
    return None


@functools.cache
def is_cuda_aware() -> bool | None:
    """Return whether the MPI library takes device arrays; None if unknown.

    The answer comes from MPI 4.1's info key, or else from MPICH's or Open MPI's query function.
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


def before_finalize(function: Callable[[], None]) -> None:
    """Call a function before MPI is finalized, perhaps twice.

    It is called when the program ends, and when the program calls MPI.Finalize.
    """
    _before_finalize.append(function)
    keyval = MPI.Comm.Create_keyval(delete_fn=lambda *_: function())
    # MPI.Finalize first deletes the attributes of COMM_SELF.
    MPI.COMM_SELF.Set_attr(keyval, None)


_before_finalize: list[Callable[[], None]] = []


def _at_exit() -> None:
    for function in reversed(_before_finalize):
        function()


# atexit runs functions in the reverse order of registration. So those of the program run first, and may communicate.
atexit.register(_at_exit)


_children: list[bool] = []  # one item in a process that a rank has forked


def _begin_child() -> None:
    _before_finalize.clear()
    if MPI.Is_initialized():
        _children.append(True)


in_children(_begin_child)


def is_child() -> bool:
    """Return whether a rank has forked this process, which is no rank itself.

    Destructors ask this before they use MPI, a device or shared memory, which belong to the parent.
    """
    return bool(_children)


def mpi_is_gone() -> bool:
    """Return whether destructors must not call MPI: once finalized, and in a child."""
    return is_child() or MPI.Is_finalized()


def with_cuda(kinds: str | None) -> str:
    """Return MPI's memory kinds (a list with commas, or None) with CUDA's added."""
    given = (kinds or "mpi,system").split(",")
    return ",".join(dict.fromkeys([*given, "cuda", "cuda:host", "cuda:device", "cuda:managed"]))


def mpiexec() -> str | None:
    """Return the path of an mpiexec; None if there is none."""
    beside = Path(sys.executable).with_name("mpiexec")  # wheels of MPI libraries install it here
    return str(beside) if beside.exists() else shutil.which("mpiexec")
