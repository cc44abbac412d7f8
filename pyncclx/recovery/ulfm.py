"""What MPI has found of failed ranks: Open MPI under `mpirun --with-ft ulfm`; others end the job, or find nothing."""

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

_ENABLED = "OMPI_MCA_mpi_ft_enable"  # Open MPI's parameter, as its mpirun sets it for the ranks


@functools.cache
def is_enabled() -> bool:
    """Return whether MPI goes on when ranks fail."""
    return is_possible() and settings.foreign(_ENABLED) in ("1", "true", "yes")


@functools.cache
def is_possible() -> bool:
    """Return whether MPI has the calls of ULFM, and they work: those of MPICH 5.0 end the program."""
    return MPI.get_vendor()[0] == "Open MPI" and MPI.get_vendor()[1] >= (5,)


def require(method: str) -> None:
    """Raise NotSupported if MPI cannot do what ULFM has a method for."""
    if not is_possible():
        raise NotSupported(
            f"{method}: this MPI ends the job when a rank fails, and makes no communicator of the others. Open MPI "
            "does: `mpirun --with-ft ulfm --mca pml ob1` (version 5; the wheel of PyPI has it)"
        )


def failed_ranks(comm: MPI.Comm) -> tuple[int, ...]:
    """Return the ranks of a communicator that MPI has found to have failed; local."""
    if is_enabled():
        let_go_on()  # Open MPI takes note of failures when a call makes progress
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
    """Return the note of a rank that has revoked a communicator; -1: an unknown one."""
    return Note(group, REVOKED, rank, -1, 0, 0, 0, time.monotonic_ns(), "")


def is_revoked(comm: MPI.Comm) -> bool:
    """Return whether a rank has revoked a communicator; local."""
    return MPI.Comm.Is_revoked(comm)


def world_ranks(comm: MPI.Comm) -> tuple[int, ...]:
    """Return each rank of a communicator as a rank of MPI.COMM_WORLD, -1 of another world; local."""
    group = comm.Get_remote_group() if isinstance(comm, MPI.Intercomm) else MPI.Comm.Get_group(comm)
    return tuple(-1 if rank == MPI.UNDEFINED else rank for rank in ranks_in_world(group))
