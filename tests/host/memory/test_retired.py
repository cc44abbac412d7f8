"""Memory that is given up: freed when no kernel may be waiting for a peer, or when there is no other left."""

import threading
from collections import deque
from contextlib import suppress
from functools import partial
from types import SimpleNamespace

import pytest

from pyncclx.failures.detector import Detector
from pyncclx.memory import mapped, retired
from pyncclx.team.ending import Ending


class Device:
    name = "gpu"

    def __init__(self):
        self.done, self.room, self.is_captured = [], 1, False

    def current_stream(self):
        return "stream"

    def is_capturing(self, stream):
        return self.is_captured

    def synchronize(self):
        self.done.append("waited")

    def allocate_shared(self, nbytes):
        if not self.room:
            raise MemoryError
        self.room -= 1
        return nbytes


@pytest.fixture
def device():
    return Device()


@pytest.fixture
def state(monkeypatch):
    """What is under way."""
    state = SimpleNamespace(busy=False)
    detector = SimpleNamespace(made=SimpleNamespace(is_busy=lambda ended: state.busy))
    monkeypatch.setattr(retired, "DETECTOR", detector)
    return state


@pytest.fixture
def waiting(device, monkeypatch):
    waiting = retired.Retired(device)
    waiting.add(lambda: device.done.append("freed"))
    monkeypatch.setattr(retired.RETIRED, "get", lambda: waiting)
    return waiting


def test_it_waits_for_kernels(device, state, waiting):
    state.busy = True
    waiting.free()
    assert not device.done
    state.busy = False
    waiting.free()
    assert device.done == ["waited", "freed"]
    waiting.free()
    assert device.done == ["waited", "freed"]


def test_it_waits_for_open_receives(monkeypatch, device, state, waiting):
    monkeypatch.setattr(retired, "OPEN_RECEIVES", [object()])
    waiting.free()
    assert not device.done


def test_it_waits_for_the_end_of_a_capture(device, state, waiting):
    """In which the host must not wait for the device."""
    device.is_captured = True
    waiting.free()
    assert not device.done


def test_one_that_raises_does_not_keep_the_others(device, state, waiting):
    def fail():
        raise RuntimeError

    waiting.add(fail, lambda: device.done.append("last"))
    with pytest.raises(RuntimeError):
        waiting.free()
    waiting.free()
    assert device.done == ["waited", "freed", "waited", "last"]


def test_where_there_is_no_other_memory(device, state, waiting):
    """The wait may last until a timeout then, which is better than an error."""
    state.busy, device.room = True, 0
    waiting.add(lambda: setattr(device, "room", 1))
    assert mapped._allocate(device, 8) == 8
    assert device.done == ["waited", "freed"]


def test_what_another_thread_adds_during_the_wait(device, state, waiting):
    """Its kernels were not waited for."""
    device.synchronize = lambda: waiting.add(lambda: device.done.append("late"))
    waiting.free()
    assert device.done == ["freed"]
    device.synchronize = lambda: device.done.append("waited")
    waiting.free()
    assert device.done == ["freed", "waited", "late"]


def test_several_threads_free(device, state):
    """Each thing is freed once, though two threads come here together."""
    waiting, done, errors, together = retired.Retired(device), [], [], threading.Barrier(2)

    class Looked(deque):
        """Lets the other thread take what this one has just seen."""

        def __bool__(self):
            seen = len(self) > 0
            with suppress(threading.BrokenBarrierError):
                together.wait(0.2)
            return seen

    def free():
        try:
            waiting.free()
        except Exception as error:
            errors.append(error)

    waiting._waiting = Looked(partial(done.append, name) for name in ("first", "second", "last"))
    threads = [threading.Thread(target=free) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert sorted(done) == ["first", "last", "second"]


def test_nothing_at_once_on_the_host_device(device, state, waiting):
    """Its kernels may be at work in other threads, which no wait there ends."""
    device.name, state.busy = "host", True
    waiting.free(at_once=True)
    assert not device.done
    state.busy = False
    waiting.free()
    assert device.done == ["freed"]


@pytest.mark.parametrize("has_graphs", [False, True])
@pytest.mark.parametrize("teams", [[], [False], [True, False]], ids=["none", "of signals", "the program's"])
def test_kernels_that_the_program_launches_itself(has_graphs, teams):
    """They may be at work on any stream, and wait for a peer."""
    device_teams = [SimpleNamespace(for_program=each) for each in teams]
    team = SimpleNamespace(order=SimpleNamespace(has_graphs=has_graphs), device_teams=device_teams)
    watched = SimpleNamespace(is_busy=lambda: False, may_launch=lambda: Ending.may_launch(team))
    detector = SimpleNamespace(_watched=[watched])
    assert Detector.is_busy(detector) == (has_graphs or True in teams)
    assert not Detector.is_busy(detector, watched)
