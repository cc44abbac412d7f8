"""What the flight recorder and hooks have of calls over nodes."""

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx.failures.kernel_errors import CUT
from support.arrays import put, xp
from support.everywhere import assert_everywhere

WORLD = MPI.COMM_WORLD
SIZE, RANK = WORLD.size, WORLD.rank
pytestmark = pytest.mark.ranks(2)


@pytest.fixture
def comm(monkeypatch):
    monkeypatch.setenv("PYNCCLX_NODE", str(RANK % 2))
    comm = pyncclx.Communicator().Dup()
    yield comm
    comm.Free()


def numbered(comm):
    """How many numbers a communicator's calls have had."""
    return next(comm.state.calls(comm).numbers)


@pytest.mark.parametrize("count", [5, 20_000])
def test_a_refusal_takes_no_number(comm, count):
    """Of an earlier call, which the next one raises, once, whether that is a new call or an equal one."""
    x, y = put(np.ones(count)), xp.empty(count)
    comm.Allreduce(x, y)
    for equal in (True, False):
        first = numbered(comm)
        if RANK == 1:
            comm.spanning.refusals.refuse("Alltoallv", CUT, 0, 9, 3)
            with pytest.raises((ValueError, pyncclx.CapacityExceeded)):
                comm.Allreduce(x if equal else put(np.ones(count)), y)
        comm.Allreduce(x if equal else put(np.ones(count)), y)
        comm.synchronize()
        numbers = WORLD.allgather(numbered(comm) - first)
        assert numbers == [2] * SIZE


@pytest.mark.parametrize("count", [5, 20_000])
def test_starts_and_ends(comm, count):
    """Each call has both, in this order, the first one and equal ones."""
    seen = []
    remove = pyncclx.on_event(lambda event: seen.append((event.kind, event.operation)), slow_s=100.0)
    try:
        for _ in range(3):
            comm.Allreduce(put(np.ones(count)), xp.empty(count))
        comm.Bcast(put(np.ones(count)))
    finally:
        remove()
    names = ["Allreduce"] * 3 + ["Bcast"]
    expected = [(kind, name) for name in names for kind in ("start", "end")]
    assert_everywhere(WORLD, [each for each in seen if each[1] in names] == expected, str(seen))
