"""The monitor of programs that the host does not wait for: what it raises for one that does not end."""

import contextlib
import functools
import threading
import time
from collections import deque
from types import SimpleNamespace

import pytest

from pyncclx.errors import StepTimeout
from pyncclx.nodes import step_monitor as step_monitor_module
from pyncclx.nodes.program import Program, Step
from pyncclx.nodes.step_monitor import PAUSE_S, Awaited, StepMonitor, Watch
from pyncclx.system import threads
from support.interruption import Interruption

RANK = 1
NEVER = SimpleNamespace(is_over=lambda: False)


class Engine:
    """Nothing that it is given ends."""

    follows_streams = True

    def __init__(self):
        self.aborted = []

    def check(self, step):
        pass

    def abort(self, step, reason):
        self.aborted.append((step, reason))


def exchange(engine, name, peer):
    return Step(lambda team, stream, call: None, name, engine, (peer,))


def awaited_of(program, *, deadline, end, look=lambda: None, absent=tuple, ends=None):
    device = SimpleNamespace(attached=contextlib.nullcontext)
    watch = Watch(device, RANK, look)
    watch.absent, watch.ends = lambda number, peers: absent(peers), [] if ends is None else ends
    return Awaited(watch, program, 7, deadline, end)


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["Allreduce, exchange"], "Allreduce, exchange: rank 1 timed out waiting for rank"),
        (["Reduce, exchange", "Reduce, gather"], "Reduce, exchange or Reduce, gather: rank 1 timed out waiting for"),
        (["Allreduce, exchange"] * 3, "Allreduce, exchange: rank 1 timed out waiting for rank"),
    ],
)
def test_it_names_the_steps_and_the_ranks(names, text):
    engine = Engine()
    steps = [exchange(engine, name, 2 + number) for number, name in enumerate(names)]
    program = Program("Allreduce", [Step(lambda team, stream, call: None), *steps], (), follows_streams=True)
    awaited = awaited_of(program, deadline=0.0, end=NEVER)
    assert awaited.is_over()
    (step, reason), *more = engine.aborted
    assert not more
    assert step == program.waits
    assert isinstance(reason, StepTimeout)
    assert reason.peers == tuple(range(2, 2 + len(names)))
    assert str(reason).replace("rank 2", "rank", 1).startswith(text)


def test_it_names_those_that_are_absent():
    """And not those that wait, too."""
    engine, asked = Engine(), []

    def absent(peers):
        asked.append(peers)
        return (3,)

    program = Program("Bcast", [exchange(engine, "Bcast, exchange", peer) for peer in (0, 2)], (), follows_streams=True)
    assert awaited_of(program, deadline=0.0, end=NEVER, absent=absent).is_over()
    ((_, reason),) = engine.aborted
    assert asked == [(0, 2)]
    assert reason.peers == (3,)


@pytest.mark.parametrize("end", [NEVER, None], ids=["enqueued", "being enqueued"])
def test_a_program_in_time_goes_on(end):
    engine = Engine()
    program = Program("Bcast", [exchange(engine, "Bcast, exchange", 0)], (), follows_streams=True)
    assert not awaited_of(program, deadline=float("inf"), end=end).is_over()
    assert engine.aborted == []


def test_it_ends_what_the_host_enqueues_when_the_calls_of_ranks_differ():
    """The host may be in a call of NCCL, which waits for a rank that has made another call."""
    engine, different = Engine(), ValueError("ranks disagree")

    def look():
        raise different

    program = Program("Bcast", [exchange(engine, "Bcast, exchange", 0)], (), follows_streams=True)
    awaited = awaited_of(program, deadline=float("inf"), end=None, look=look)
    assert awaited.is_over()
    assert engine.aborted == [("Bcast, exchange", different)]


def test_what_has_ended_in_time_is_not_aborted():
    engine = Engine()
    program = Program("Bcast", [exchange(engine, "Bcast, exchange", 0)], (), follows_streams=True)
    end, ends = SimpleNamespace(is_over=lambda: True), []
    assert awaited_of(program, deadline=0.0, end=end, ends=ends).is_over()
    assert engine.aborted == []
    assert ends == [end]


def test_one_look_for_all_programs_of_an_engine():
    """And one more when the last one has ended: what its calls are may have to be sent."""
    monitor, engine, looks = StepMonitor.__new__(StepMonitor), Engine(), []
    monitor._awaited, monitor._looks, monitor._rolls = deque(), deque(), deque()
    look = functools.partial(looks.append, 0)
    ends = [threading.Event() for _ in range(3)]
    program = Program("Bcast", [exchange(engine, "Bcast, exchange", 0)], (), follows_streams=True)
    for end in ends:
        over = SimpleNamespace(is_over=end.is_set)
        awaited = awaited_of(program, deadline=float("inf"), end=over, look=look)
        monitor._awaited.append(awaited)
        awaited.watch = monitor._awaited[0].watch  # that of their communicator
    for ended, left, expected in ((0, 3, 1), (1, 2, 3), (3, 0, 4)):
        for end in ends[:ended]:
            end.set()
        monitor.look()
        assert (len(monitor._awaited), len(looks)) == (left, expected)


def test_a_look_that_was_asked_for():
    """After a pause, once, whatever it raises; none once the program has ended."""
    monitor, looks, device = StepMonitor(), [], SimpleNamespace(attached=contextlib.nullcontext)
    seen = threading.Semaphore(0)

    def look():
        looks.append(time.monotonic())
        seen.release()
        raise ValueError("for calls to raise")

    asked = time.monotonic()
    for _ in range(2):
        monitor.look_once(device, look)
    assert all(seen.acquire(timeout=10) for _ in range(2))
    assert len(looks) == 2
    assert looks[0] - asked >= PAUSE_S
    monitor._end()
    monitor.look_once(device, look)
    assert not seen.acquire(timeout=3 * PAUSE_S)


def test_the_host_is_not_in_a_call_without_end():
    engine = Engine()
    program = Program("Bcast", [exchange(engine, "Bcast, exchange", 0)], (), follows_streams=True)
    assert awaited_of(program, deadline=0.0, end=None).is_over()
    ((step, reason),) = engine.aborted
    assert step == "Bcast, exchange"
    assert isinstance(reason, StepTimeout)


def test_an_interrupt_leaves_it_awake():
    """Wherever Python runs a signal handler, in the library of Python too, the next call is heard."""
    monitor, device = StepMonitor(), SimpleNamespace(attached=contextlib.nullcontext)
    files, point, is_past = [step_monitor_module.__file__, threads.__file__, threading.__file__], 0, False
    while not is_past:
        point += 1
        interruption, seen = Interruption(point, *files), threading.Semaphore(0)
        interruption.end(monitor.look_once, device, bool)
        is_past = interruption.is_past
        other = threading.Thread(target=monitor.look_once, args=(device, seen.release), daemon=True)
        other.start()
        assert seen.acquire(timeout=5), interruption.place
    assert point > 3
