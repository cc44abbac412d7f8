"""Rank failures that MPI reports: Open MPI under `mpirun --with-ft ulfm`.

Other MPIs end the job, or report nothing.
"""

from __future__ import annotations

from mpi4py import MPI

from mpi_bootstrap.groups import ranks_in_world
from mpi_bootstrap.polls import poll
from mpi_bootstrap.waiting import let_go_on

from ..errors import NotSupported
from ..system.mpi_library import goes_on_after_failures, has_ulfm


def require(method: str) -> None:
    """Raise NotSupported if MPI has no ULFM, which a method needs."""
    if not has_ulfm():
        raise NotSupported(
            f"{method}: this MPI ends the job when a rank fails, and makes no communicator of the others. Open MPI "
            "does: `mpirun --with-ft ulfm --mca pml ob1` (version 5; the wheel of PyPI has it)"
        )


def failed_ranks(comm: MPI.Comm) -> tuple[int, ...]:
    """Return the failed ranks of a communicator that MPI has found; local."""
    if goes_on_after_failures():
        poll(let_go_on)  # Open MPI records failures when a call makes progress
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


def is_revoked(comm: MPI.Comm) -> bool:
    """Return whether a rank has revoked a communicator; local."""
    return MPI.Comm.Is_revoked(comm)


def world_ranks(comm: MPI.Comm) -> tuple[int, ...]:
    """Return each rank's rank in COMM_WORLD, or -1 if it is of another world; local."""
    group = comm.Get_remote_group() if isinstance(comm, MPI.Intercomm) else MPI.Comm.Get_group(comm)
    return tuple(-1 if rank == MPI.UNDEFINED else rank for rank in ranks_in_world(group))
