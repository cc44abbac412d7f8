"""A rank leaves a call over nodes by an exception: later calls have their own data, or raise, on all ranks."""

import itertools
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx import backends, requests
from pyncclx.nodes import composition, mpi_engine
from pyncclx.nodes import requests as nodes_requests
from support.alarms import raising
from support.arrays import host_only
from support.everywhere import assert_everywhere
from support.interruption import Interrupted, Interruption

WORLD = MPI.COMM_WORLD
SIZE, RANK = WORLD.size, WORLD.rank
SECONDS = 2.0
FOLDER = str(Path(mpi_engine.__file__).parent)
WAITS = nodes_requests.__file__, str(Path(requests.__file__).parent)
ENDS = (pyncclx.Aborted, pyncclx.PeerTimeout, pyncclx.CollectiveMismatch)
LONG, SHORT = 20_001, 7  # elements; the short ones go through the host's memory
pytestmark = [pytest.mark.ranks(2, 3), pytest.mark.timeout(30), host_only]


def bcast(comm, x, y):
    y[:] = x if RANK == SIZE - 1 else -1
    comm.Bcast(y, SIZE - 1)


def gather(comm, x, y):
    comm.Gather(x, np.empty(x.size * SIZE) if RANK == SIZE - 1 else None, SIZE - 1)
    y[:] = x


def blocks(comm, x, y):
    whole = np.empty(x.size * SIZE)
    comm.Alltoall(np.tile(x, SIZE), whole)
    y[:] = sum(np.split(whole, SIZE))


def of_all(comm, x, y):
    whole = np.empty(x.size * SIZE)
    comm.Allgather(x, whole)
    y[:] = sum(np.split(whole, SIZE))


def begun(comm, x, y):
    comm.Iallreduce(x, y).Wait()


CALLS = {
    "Allreduce": lambda comm, x, y: comm.Allreduce(x, y),
    "Bcast": bcast,
    "Gather": gather,
    "Alltoall": blocks,
    "Allgather": of_all,
    "Iallreduce": begun,
}


def right(name, value):
    """What each rank has after a call in which rank r gives `value` + r; of a Gather only that it has ended."""
    values = value + np.arange(SIZE)
    return values[-1] if name == "Bcast" else values[RANK] if name == "Gather" else values.sum()


def made(monkeypatch, count):
    """A communicator, each rank on a node of its own, which has made each call of so many elements."""
    monkeypatch.setenv("PYNCCLX_NODE", str(RANK))
    monkeypatch.setenv("PYNCCLX_TIMEOUT", str(SECONDS))
    comm = pyncclx.Communicator(WORLD).Dup()
    for call in CALLS.values():
        call(comm, np.ones(count), np.empty(count))
    comm.spanning.programs.clear()  # or a call on memory that those calls had would be a cached one, on some ranks
    WORLD.Barrier()
    return comm


def attempts(comm, name, count, calls=3, trace=None):
    """What some calls in turn come to on this rank: the result that each should have, or what it raised.

    The first is traced.
    """
    outcomes = []
    for value in 100.0 * np.arange(1, calls + 1):
        y = np.full(count, -1.0)
        try:
            sys.settrace(trace)
            CALLS[name](comm, np.full(count, value + RANK), y)
            comm.synchronize()
            sys.settrace(None)
            trace = None
            outcomes.append("right" if (y == right(name, value)).all() else f"WRONG: {y[0]}, not {right(name, value)}")
        except Interrupted:
            outcomes.append("left")
        except ENDS as error:
            outcomes.append(type(error).__name__)
    return outcomes


def check(name, outcomes):
    """Nobody has wrong data, and who has raised goes on raising."""
    assert_everywhere(WORLD, not any("WRONG" in each for each in outcomes), f"{name}: {outcomes}")
    ended = [each != "right" for each in outcomes[outcomes[0] == "left" :]]
    assert_everywhere(WORLD, ended == sorted(ended), f"{name}: {outcomes}")


@pytest.mark.parametrize("count", [SHORT, LONG])
@pytest.mark.parametrize("name", [name for name in CALLS if name != "Iallreduce"])
def test_left_in_a_wait(monkeypatch, name, count):
    """Ctrl-C while the other node is late; the others find out from this rank, not at the end of their patience."""
    comm = made(monkeypatch, count)
    leaving = 0 if name == "Bcast" else SIZE - 1  # it waits for others, which have not come

    if leaving == RANK:
        with pytest.raises(Interrupted), raising(Interrupted, 0.2):
            CALLS[name](comm, np.ones(count), np.empty(count))
    WORLD.Barrier()
    outcomes = attempts(comm, name, count)
    check(name, outcomes)
    assert_everywhere(WORLD, outcomes[-1] == "Aborted", f"{outcomes}")
    comm.state.abandon()


class InterruptedCall(Interruption):
    """Counts points from the beginning of a call over nodes on."""

    def __init__(self, point):
        super().__init__(point, FOLDER)
        self.has_begun = False

    def __call__(self, frame, event, argument):
        self.has_begun = self.has_begun or frame.f_code.co_name == "entering"
        return super().__call__(frame, event, argument) if self.has_begun else self


@pytest.mark.parametrize("count", [SHORT, LONG])
@pytest.mark.parametrize("name", CALLS)
def test_left_at_any_point(monkeypatch, name, count):
    """Of `pyncclx.nodes`: the call has been made, or the communicator is over."""
    comm, trace = made(monkeypatch, count), InterruptedCall(0)
    trace.end(CALLS[name], comm, np.ones(count), np.empty(count))
    points = WORLD.bcast(trace.points, 0)
    assert points > 30
    for point in range(1 + points // 16, points, 1 + points // 8):
        again = made(monkeypatch, count)
        interruption = InterruptedCall(point)
        outcomes = attempts(again, name, count, trace=interruption if RANK == 0 else None)
        check(f"{name}, point {point}, {interruption.place}", outcomes)
        again.state.abandon()
    comm.state.abandon()


@pytest.mark.parametrize("count", [SHORT, LONG])
def test_left_in_the_wait_of_a_request(monkeypatch, count):
    """The steps still have the arrays that the program then drops; the other ranks begin later."""
    comm = made(monkeypatch, count)
    comm.stream = backends.select().new_stream()  # no wait for steps is a wait of the host
    for number in itertools.count(1):
        y, has_left = np.empty(count), False
        if RANK == 0:
            wait = comm.Iallreduce(np.full(count, 100.0 * number), y).Wait
            interruption = Interruption(number, *WAITS)
            interruption.end(wait)
            has_left = not interruption.is_past
            del wait
        WORLD.Barrier()
        if RANK > 0:
            comm.Iallreduce(np.full(count, 100.0 * number + RANK), y).Wait()
        comm.synchronize()
        ended = RANK == 0 or (y == right("Iallreduce", 100.0 * number)).all()
        assert_everywhere(WORLD, ended, f"point {number}: {y[0]}")
        if not WORLD.bcast(has_left):
            break
    assert_everywhere(WORLD, number > 5, f"{number} points")
    comm.state.abandon()


@pytest.mark.parametrize("count", [SHORT, LONG])
def test_an_exception_on_one_rank_while_a_call_is_composed(monkeypatch, count):
    """It ends the communicator, unless all raise it."""
    comm = made(monkeypatch, count)
    program = composition.Composition.copy

    def fail(self, *args, **options):
        raise MemoryError("of this rank")

    for failing in ([*range(SIZE)], [0]):
        with monkeypatch.context() as patch:
            if RANK in failing:
                patch.setattr(composition.Composition, "copy", fail)
                patch.setattr(composition.Composition, "exchange", fail)
                patch.setattr(composition.Composition, "share", fail)
            try:
                comm.Allgather(np.ones(count + 1), np.empty((count + 1) * SIZE))
                raised = None
            except (MemoryError, *ENDS) as error:
                raised = error
        assert composition.Composition.copy is program
        assert_everywhere(WORLD, raised is not None or RANK not in failing)
        outcomes = attempts(comm, "Allgather", count)
        check("Allgather", outcomes)
        assert_everywhere(WORLD, (outcomes == ["right"] * 3) == (len(failing) == SIZE), f"{outcomes}")
    comm.state.abandon()


def test_a_message_that_is_sent_is_kept():
    """MPI reads its memory until it is sent; a handler that raises just after MPI's call does not free it."""
    comm = MPI.COMM_SELF.Dup()
    for point in itertools.count(1):
        outbox, trace, found = mpi_engine.Outbox(7), Interruption(point, FOLDER), bytearray(5)
        trace.end(outbox.send, comm, b"bytes", 0)
        is_sent = comm.Iprobe(0, 7)
        kept = [(rank, message) for _, rank, message in outbox._sent]
        assert_everywhere(WORLD, kept == [(0, b"bytes")] * is_sent, f"{trace.place}: {is_sent}, {kept}")
        if is_sent:
            comm.Recv([found, MPI.BYTE], 0, 7)
            assert outbox.is_empty()
        if trace.is_past:
            break
    assert point > 1
    assert found == b"bytes"
    comm.Free()


def test_cached_calls_after_a_meeting_that_one_rank_missed(monkeypatch):
    """They raise on all ranks, or one rank's next call would get the data of another call. The late rank is named."""
    comm, last, x, y = pyncclx.Communicator(WORLD).Dup(), SIZE - 1, np.ones(SHORT), np.empty(SHORT)
    for _ in range(3):
        comm.Allreduce(x, y)
    comm.synchronize()
    monkeypatch.setenv("PYNCCLX_TIMEOUT", "1")
    WORLD.Barrier()
    time.sleep(2.5 * (last == RANK))
    with pytest.raises((pyncclx.PeerTimeout, pyncclx.Aborted)) as raised:
        comm.Alloc(SHORT)
    named = getattr(raised.value, "missing", None)
    assert_everywhere(WORLD, named == (None if last == RANK else (last,)), f"{raised.value}")
    for _ in range(3):
        with pytest.raises((pyncclx.PeerTimeout, pyncclx.Aborted)):
            comm.Allreduce(x, y)
    WORLD.Barrier()
    comm.Free()
