"""Memory that is given up: freed when no kernel may be waiting for a peer, or when there is no other left."""

from types import SimpleNamespace

import pytest

from pyncclx.memory import mapped, retired


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
    detector = SimpleNamespace(made=SimpleNamespace(is_busy=lambda: state.busy))
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
