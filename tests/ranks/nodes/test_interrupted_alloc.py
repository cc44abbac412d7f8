"""Signal handlers that raise in `Alloc` over nodes, while a rank of the same or of another node is late."""

import contextlib
import time

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from support.alarms import raising
from support.arrays import get, put, xp
from support.everywhere import assert_everywhere

WORLD = MPI.COMM_WORLD
SIZE, RANK = WORLD.size, WORLD.rank
pytestmark = pytest.mark.ranks(2)


class Late(Exception):
    """What the handler raises."""


@pytest.mark.parametrize("node_of", [lambda rank: rank // 2, lambda rank: rank % 2], ids=["pairs", "in turn"])
@pytest.mark.parametrize("late", [1, SIZE - 1])
def test_the_exception_comes_after_the_call(node_of, late, monkeypatch):
    """Nobody leaves between the meeting of a node's ranks and that of all; the communicator goes on."""
    monkeypatch.setenv("PYNCCLX_NODE", str(node_of(RANK)))
    comm, total = pyncclx.Communicator(WORLD).Dup(), xp.empty(5, "f4")
    comm.Allreduce(put(np.ones(5, "f4")), total)
    comm.synchronize()
    WORLD.Barrier()
    if late == RANK:
        time.sleep(0.2)
    raised = None
    try:
        with raising(Late, 0.05) if RANK == 0 else contextlib.nullcontext():
            comm.Alloc(7, "i4")
    except Late as error:
        raised = type(error)
    assert_everywhere(WORLD, raised is (Late if RANK == 0 else None), f"{raised}")
    comm.Allreduce(put(np.full(5, RANK, "f4")), total)
    assert_everywhere(WORLD, bool((get(total) == sum(range(SIZE))).all()))
    comm.Free()
