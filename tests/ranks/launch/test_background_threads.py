"""How often the library's threads wake while the program makes no calls. Each wake can take time from the program."""

import threading
import time
from pathlib import Path

import pytest
from mpi4py import MPI

from pyncclx.messages.progress.polling import PROGRESS
from support.arrays import xp
from support.everywhere import assert_everywhere
from support.reversed_ranks import reversed_ranks

WORLD = MPI.COMM_WORLD
SIZE, RANK = WORLD.size, WORLD.rank
SECONDS = 1.0
QUIET_S = 2.5  # by then the thread of messages sleeps
# The most times a second that a thread may wake. docs/how_it_works.md has what was measured.
ALWAYS = {"detector": 10, "messages": 0, "signals": 0, "first calls": 0, "nodes": 0, "watchdog": 4}
WITH_OPEN_RECEIVE = ALWAYS | {"messages": 1000}
AFTER_A_MESSAGE = ALWAYS | {"messages": 63}
pytestmark = pytest.mark.skipif(SIZE < 2, reason="one rank has nobody to wait for")

comm = pytest.fixture(reversed_ranks, scope="module")


def wakes():
    """How often each of the library's threads has slept since it began."""
    found = {}
    for thread in threading.enumerate():
        if thread.name.startswith("pyncclx "):
            text = Path(f"/proc/self/task/{thread.native_id}/status").read_text()
            count = int(text.split("voluntary_ctxt_switches:")[1].split()[0])
            found[thread.name.removeprefix("pyncclx ")] = count
    return found


def rates():
    """How often each thread wakes a second while this one sleeps."""
    before = wakes()
    time.sleep(SECONDS)
    return {name: (count - before[name]) / SECONDS for name, count in wakes().items() if name in before}


def assert_seldom(found, most):
    """Assert it with a fifth more, because a thread also sleeps when it waits for the interpreter."""
    often = {name: rate for name, rate in found.items() if rate > 1.2 * most.get(name, 0) + 3}
    assert_everywhere(WORLD, not often, str(often))


def message(comm, tag):
    """Begin to receive from one side; return what completes it."""
    x, y = xp.full(5, RANK, "i4"), xp.zeros(5, "i4")
    request = comm.Irecv(y, (comm.rank - 1) % SIZE, tag)

    def complete():
        comm.Send(x, (comm.rank + 1) % SIZE, tag)
        request.Wait()

    return complete


def test_threads_sleep_while_nothing_is_open(comm):
    message(comm, 1)()
    comm.Allreduce(xp.ones(5, "i4"), xp.zeros(5, "i4"))
    comm.synchronize()
    WORLD.Barrier()
    time.sleep(QUIET_S)
    found = rates()
    assert_everywhere(WORLD, "detector" in found and "messages" in found)
    # Tests before this one may have left sends that MPI does not report as sent.
    assert_seldom(found, AFTER_A_MESSAGE if PROGRESS.get().may_have_more else ALWAYS)


def test_a_message_keeps_its_thread_awake_for_a_second(comm):
    message(comm, 2)()
    comm.synchronize()
    assert_seldom(rates(), AFTER_A_MESSAGE)


def test_an_open_receive_is_polled_every_millisecond(comm):
    complete = message(comm, 3)
    found = rates()
    complete()
    comm.synchronize()
    assert_seldom(found, WITH_OPEN_RECEIVE)
    assert_everywhere(WORLD, MPI.Query_thread() < MPI.THREAD_MULTIPLE or found["messages"] > 0)
