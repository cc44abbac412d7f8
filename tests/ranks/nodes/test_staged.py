"""Communicators over nodes for which there is no memory: MPI does their calls on host copies."""

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx.errors import NotSupported
from pyncclx.team import base
from support.arrays import Output, put
from support.reference import comparing, labels

WORLD = MPI.COMM_WORLD
pytestmark = pytest.mark.ranks(2)


@pytest.fixture
def comm(monkeypatch):
    """A new communicator, whose ranks are each a node of their own. Its node has no memory for it."""

    def refuse(*_):
        raise NotSupported("the heap is full")

    monkeypatch.setenv("PYNCCLX_NODE", str(WORLD.rank))
    monkeypatch.setattr(base, "Team", refuse)
    monkeypatch.setattr(base.dropped, "take_over", lambda *_: None)
    comm = pyncclx.Communicator().Dup()
    comm.staging = True
    yield comm
    comm.Free()


def test_later_nonblocking_calls_wait_for_nobody(comm, monkeypatch):
    """The ranks meet in the first call alone. After it, one rank begins a call before the others do."""
    monkeypatch.setenv("PYNCCLX_TIMEOUT", "10")
    own, received = put(labels(comm.rank, 3)), [Output(3 * comm.size, "i8") for _ in range(2)]
    comm.Iallgather(own, received[0].array).Wait()
    if comm.rank == 0:
        request = comm.Iallgather(own, received[1].array)
    # The others begin theirs only when rank 0 has begun.
    WORLD.bcast(None)
    if comm.rank > 0:
        request = comm.Iallgather(own, received[1].array)
    request.Wait()
    with comparing() as compare:
        for number, each in enumerate(received):
            compare(each, np.concatenate([labels(rank, 3) for rank in range(comm.size)]), f"call {number}")
