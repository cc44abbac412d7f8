"""Streams of the host device: their order, their events, and errors in their threads."""

import threading
from functools import partial

import numpy as np
import pytest

from pyncclx.backends.host import Device


@pytest.fixture
def device():
    return Device()


class Gate:
    """Work that lasts until the gate is opened."""

    def __init__(self):
        self._opened = threading.Event()
        self.open = self._opened.set

    def __call__(self):
        assert self._opened.wait(20)


def test_one_thing_after_the_other(device):
    stream, done = device.new_stream(), []
    for number in range(100):
        stream.enqueue(partial(done.append, number))
    device.synchronize(stream)
    assert done == list(range(100))


def test_streams_run_beside_each_other_and_the_program(device):
    first, second, gate, done = device.new_stream(), device.new_stream(), Gate(), []
    first.enqueue(gate)
    second.enqueue(partial(done.append, 1))
    device.synchronize(second)
    device.synchronize(None)  # the current stream has nothing to do
    assert done == [1]
    gate.open()
    device.synchronize()


def test_a_stream_waits_for_another(device):
    first, second, gate, done = device.new_stream(), device.new_stream(), Gate(), []
    first.enqueue(gate)
    first.enqueue(partial(done.append, "first"))
    device.order(first, second)
    assert device.fork(None, second)
    second.enqueue(partial(done.append, "second"))
    first.enqueue(partial(done.append, "after what the second waits for"))
    gate.open()
    device.order(second, None)
    assert done[0] == "first"
    assert "second" in done


def test_events(device):
    stream, gate, event = device.new_stream(), Gate(), device.event()
    assert event.is_over()
    stream.enqueue(gate)
    event.record(stream)
    assert not event.is_over()
    gate.open()
    event.synchronize()
    assert event.is_over()
    event.record(None)
    assert event.is_over()


def test_copies_are_in_the_order_of_the_stream(device):
    stream, gate = device.new_stream(), Gate()
    source, to = np.zeros(4), np.ones(4)
    stream.enqueue(gate)
    device.copy(to.ctypes.data, source.ctypes.data, to.nbytes, stream)
    assert to.all()
    source[:] = 2
    gate.open()
    device.synchronize(stream)
    assert (to == 2).all()


def fail():
    raise ValueError("what the kernel did")


@pytest.mark.parametrize("next_use", ["enqueue", "synchronize", "event"])
def test_an_error_is_raised_once_at_the_next_use(device, next_use):
    stream, event, done = device.new_stream(), device.event(), []
    stream.enqueue(fail)
    stream.enqueue(partial(done.append, "goes on"))
    event.record(stream)
    while not event.is_over():
        pass
    uses = {
        "enqueue": lambda: stream.enqueue(list),
        "synchronize": lambda: device.synchronize(stream),
        "event": event.synchronize,
    }
    with pytest.raises(ValueError, match="what the kernel did"):
        uses[next_use]()
    uses[next_use]()
    assert done == ["goes on"]


def test_the_thread_ends_with_its_stream(device):
    before, done = set(threading.enumerate()), []
    stream = device.new_stream()
    (thread,) = set(threading.enumerate()) - before
    stream.enqueue(partial(done.append, 1))
    del stream
    thread.join(20)
    assert not thread.is_alive()
    assert done == [1]
