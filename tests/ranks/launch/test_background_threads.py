"""How often the library's threads wake while the program makes no calls. Each wake can take time from the program."""

import threading
import time
from pathlib import Path

import pytest
from mpi4py import MPI

from pyncclx.messages.progress.polling import PROGRESS
from support.arrays import xp
from support.reversed_ranks import reversed_ranks

WORLD = MPI.COMM_WORLD
SIZE, RANK = WORLD.size, WORLD.rank
SECONDS, TRIES = 1.0, 5
QUIET_S = 2.5  # by then the thread of messages sleeps
# The most times a second that a thread may wake. docs/how_it_works.md has what was measured.
ALWAYS = {"detector": 10, "messages": 0, "signals": 0, "first calls": 0, "nodes": 0, "monitor": 4}
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
    before, began = wakes(), time.monotonic()
    time.sleep(SECONDS)
    seconds = time.monotonic() - began
    return {name: (count - before[name]) / seconds for name, count in wakes().items() if name in before}


def assert_seldom(most, begin=lambda: None):
    """Assert that threads wake seldom in one second of several; return its rates. Collective.

    A thread also sleeps when it waits for the interpreter. So a fifth more may be, and a busy machine has more tries.
    """
    for _ in range(TRIES):
        begin()
        found = rates()
        often = {name: rate for name, rate in found.items() if rate > 1.2 * most.get(name, 0) + 3}
        if not any(everywhere := WORLD.allgather(often)):
            return found
    pytest.fail(f"by rank: {everywhere}")


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
    # Tests before this one may have left sends that MPI does not report as sent.
    found = assert_seldom(AFTER_A_MESSAGE if PROGRESS.get().may_have_more else ALWAYS)
    assert found.keys() >= {"detector", "messages"}


def test_a_message_keeps_its_thread_awake_for_a_second(comm):
    def begin():
        message(comm, 2)()
        comm.synchronize()

    assert_seldom(AFTER_A_MESSAGE, begin)


def test_an_open_receive_is_polled_every_millisecond(comm):
    complete = message(comm, 3)
    found = assert_seldom(WITH_OPEN_RECEIVE)
    complete()
    comm.synchronize()
    assert MPI.Query_thread() < MPI.THREAD_MULTIPLE or found["messages"] > 0
