"""The roll call names the ranks that have not begun a call, and no others; it is called where NCCL times out."""

import time
from collections import deque

import numpy as np
import pytest
from mpi4py import MPI

from pyncclx.nodes.roll_call import ANSWERS_S, POLL_S, POLLS, RollCall
from pyncclx.nodes.step_monitor import STEP_MONITOR, StepMonitor

WORLD = MPI.COMM_WORLD
SIZE, RANK = WORLD.size, WORLD.rank
PEERS = tuple(rank for rank in range(SIZE) if rank != RANK)
needs_threads = pytest.mark.skipif(MPI.Query_thread() < MPI.THREAD_MULTIPLE, reason="MPI is called by a thread")
pytestmark = [pytest.mark.ranks(2), needs_threads]


@pytest.fixture
def comm():
    comm = WORLD.Dup()
    yield comm
    comm.Barrier()
    comm.Free()


def asker(roll):
    """A monitor without a thread, which answers for one communicator."""
    monitor = StepMonitor.__new__(StepMonitor)
    monitor._rolls, monitor._ended = deque(), False
    return monitor


def met(comm):
    """All ranks meet, while threads may use MPI."""
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(1e-3)


@pytest.mark.parametrize("away", [{0}, {SIZE - 1}, {0, 1}, set()], ids=str)
def test_who_is_absent(comm, away):
    """Some ranks are in call 6, some have ended call 7 and make no call, and others wait in it."""
    number = 6 if RANK in away else 7
    roll = RollCall(RANK, SIZE, lambda: comm, lambda: number)
    STEP_MONITOR.get().answer(roll)
    met(comm)
    waits = RANK not in away and (RANK - min(set(range(SIZE)) - away, default=0)) % 2 == 0
    found = asker(roll).absent(roll, 7, PEERS) if waits else None
    met(comm)
    roll.close()
    expected = tuple(sorted(away)) or PEERS
    assert found == (expected if waits else None)
    assert ANSWERS_S < POLLS * POLL_S


@pytest.mark.ranks(3)
def test_who_has_begun_the_fewest_calls(comm):
    """A rank that waits in the call before is not the late one."""
    number, waits = {0: 5, 1: 6}.get(RANK, 7), RANK == SIZE - 1
    roll = RollCall(RANK, SIZE, lambda: comm, lambda: number)
    STEP_MONITOR.get().answer(roll)
    met(comm)
    found = asker(roll).absent(roll, 7, (1,)) if waits else None
    met(comm)
    roll.close()
    assert found == ((0,) if waits else None)


def test_a_rank_has_stopped_waiting(comm):
    """The other ranks learn which rank it has waited for."""
    roll, heard = RollCall(RANK, SIZE, lambda: comm, lambda: 7), []
    roll.stopped_by = lambda *ranks: heard.append(ranks)
    met(comm)
    if RANK == 0:
        roll.stop(SIZE - 1)
    end = time.monotonic() + 10
    while RANK and not heard and time.monotonic() < end:
        roll.answer()
    met(comm)
    roll.close()
    assert heard == ([(0, SIZE - 1)] if RANK else [])


def test_one_that_is_closed(comm):
    roll = RollCall(RANK, SIZE, lambda: comm, lambda: 7)
    roll.close()
    assert asker(roll).absent(roll, 7, PEERS) == PEERS
    roll.answer()
    assert not comm.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG)


def test_ranks_tell_what_they_have_begun(comm):
    """A rank that asks tells its own number, too, which may change."""
    last = np.array([3])
    roll = RollCall(RANK, SIZE, lambda: comm, lambda: int(last[0]))
    for number in (3, 5):
        last[0] = number
        met(comm)
        roll.ask()
        end = time.monotonic() + 10
        while roll.absent(number) and time.monotonic() < end:
            roll.answer()
        assert roll.absent(number) == ()
        assert roll.absent(number + 1) == PEERS
        met(comm)
        for _ in range(100):
            roll.answer()
    met(comm)
    roll.close()
