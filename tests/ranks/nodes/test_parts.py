"""Communicators over nodes are made out of sight of the program's messages."""

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from support.reversed_ranks import ring

WORLD = MPI.COMM_WORLD


@pytest.mark.ranks(2, 4)
@pytest.mark.parametrize("layout", [2, 4])
def test_a_receive_of_any_tag_is_open(monkeypatch, layout):
    """It takes the program's message, and nothing that the first collective sends."""
    monkeypatch.setenv("PYNCCLX_NODE", str(WORLD.rank % layout))
    with pyncclx.Communicator(WORLD).Dup() as comm:
        right, left = ring(comm)
        x, y, total = np.arange(5.0) + 10 * comm.rank, np.full(5, -1.0), np.empty(5)
        request = comm.Irecv(y)
        comm.Allreduce(x, total)
        assert comm.spanning is not None
        np.testing.assert_array_equal(total, sum(np.arange(5.0) + 10 * rank for rank in range(comm.size)))
        comm.Send(x, right, 3)
        status = MPI.Status()
        request.Wait(status)
        np.testing.assert_array_equal(y, np.arange(5.0) + 10 * left)
        assert (status.source, status.tag) == (left, 3)
