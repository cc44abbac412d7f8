"""Fixtures of one communicator for tests: in another order than all ranks, so that none passes for another unseen."""

from collections.abc import Iterator

from mpi4py import MPI

import pyncclx


def reversed_ranks() -> Iterator[MPI.Intracomm]:
    """A communicator of the ranks in reversed order."""
    with pyncclx.Communicator().Split(0, -MPI.COMM_WORLD.rank) as comm:
        yield comm


def ring(comm: MPI.Intracomm) -> tuple[int, int]:
    """The rank above and the one below."""
    return (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
