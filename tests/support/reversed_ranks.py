"""Fixtures of one communicator whose ranks are in another order than the world's, so that mixed-up ranks show."""

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
