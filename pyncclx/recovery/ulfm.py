"""Rank failures that MPI reports: Open MPI under `mpirun --with-ft ulfm`.

Other MPIs end the job, or report nothing.
"""

from __future__ import annotations

import functools
import time

from mpi4py import MPI

from mpi_bootstrap.groups import ranks_in_world
from mpi_bootstrap.presence import Note
from mpi_bootstrap.waiting import let_go_on

from ..errors import NotSupported
from ..system import settings
from .losses import REVOKED

_ENABLED = "OMPI_MCA_mpi_ft_enable"  # Open MPI's parameter, set by its mpirun for the ranks


@functools.cache
def is_enabled() -> bool:
    """Return whether MPI continues when ranks fail."""
    return is_possible() and settings.foreign(_ENABLED) in ("1", "true", "yes")


@functools.cache
def is_possible() -> bool:
    """Return whether MPI has ULFM's calls and they work; MPICH 5.0's end the program."""
    return MPI.get_vendor()[0] == "Open MPI" and MPI.get_vendor()[1] >= (5,)


def require(method: str) -> None:
    """Raise NotSupported if MPI cannot do a method of ULFM."""
    if not is_possible():
        raise NotSupported(
            f"{method}: this MPI ends the job when a rank fails, and makes no communicator of the others. Open MPI "
            "does: `mpirun --with-ft ulfm --mca pml ob1` (version 5; the wheel of PyPI has it)"
        )


def failed_ranks(comm: MPI.Comm) -> tuple[int, ...]:
    """Return the failed ranks of a communicator that MPI has found; local."""
    if is_enabled():
        let_go_on()  # Open MPI records failures when a call makes progress
    failed = MPI.Comm.Get_failed(comm)
    try:
        if not failed.size:
            return ()
        group = comm.Get_remote_group() if isinstance(comm, MPI.Intercomm) else MPI.Comm.Get_group(comm)
        ranks = tuple(rank for rank in failed.Translate_ranks(None, group) if rank != MPI.UNDEFINED)
        group.Free()
        return ranks
    finally:
        failed.Free()


def revoked_note(rank: int, group: bytes = bytes(16)) -> Note:
    """Return the note of a rank that revoked a communicator; -1: an unknown rank."""
    return Note(group, REVOKED, rank, -1, 0, 0, 0, time.monotonic_ns(), "")


def is_revoked(comm: MPI.Comm) -> bool:
    """Return whether a rank has revoked a communicator; local."""
    return MPI.Comm.Is_revoked(comm)


def world_ranks(comm: MPI.Comm) -> tuple[int, ...]:
    """Return each rank's rank in COMM_WORLD, -1 for other worlds; local."""
    group = comm.Get_remote_group() if isinstance(comm, MPI.Intercomm) else MPI.Comm.Get_group(comm)
    return tuple(-1 if rank == MPI.UNDEFINED else rank for rank in ranks_in_world(group))
