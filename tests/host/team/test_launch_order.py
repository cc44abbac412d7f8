"""The order of a communicator's launches on several streams, beside captures and from several threads."""

import threading

import pytest

from pyncclx.team.launch_order import LaunchOrder
from support.fake_streams import Device, Stream


@pytest.fixture
def device():
    return Device()


@pytest.fixture
def launch(device):
    """Launch something of a name on a stream, in the order of a communicator."""
    order = LaunchOrder(device)

    def enqueue(name, stream):
        order.enqueue(name, 1, 1, b"", stream)

    enqueue.order = order
    return enqueue


def in_another_thread(call, *arguments):
    thread = threading.Thread(target=call, args=arguments)
    thread.start()
    thread.join()


def test_streams_follow_each_other(device, launch):
    first, second = Stream(), Stream()
    for number, stream in enumerate((first, second, second, first)):
        launch(number, stream)
        assert device.before[number] == set(range(number))


@pytest.mark.parametrize("kept", [True, False])
def test_a_capture_between(device, launch, kept):
    """Eager on A, captured on B, eager on C: C's launch waits for A's, and the host for C's alone."""
    first, other, last = Stream(), Stream(), Stream()
    launch("eager", first)
    other.capture = 1
    launch("captured", other)
    launch.order.synchronize()  # in the capture too
    if kept:
        other.capture = 0
    launch("next", last)
    assert device.before["captured"] == set()
    assert device.before["next"] == {"eager"}
    launch.order.synchronize()
    assert device.synchronized == [first, last]


def test_the_stream_of_the_last_launch_is_captured(device, launch):
    """The one that had it, and one that joins the capture."""
    stream, joined, last = Stream(), Stream(), Stream()
    launch("eager", stream)
    stream.capture = joined.capture = 1
    launch("captured", stream)
    launch("joined", joined)
    launch("again", stream)
    stream.capture = joined.capture = 0
    assert [device.before[name] for name in ("joined", "again")] == [{"captured"}, {"captured", "joined"}]
    launch("next", last)
    assert device.before["next"] == {"eager"}


def test_only_captured(device, launch):
    """Nothing runs, and the host waits for nothing while the capture goes on."""
    stream, last = Stream(), Stream()
    stream.capture = 1
    launch("captured", stream)
    launch.order.synchronize()
    assert not device.synchronized
    stream.capture = 0
    launch("next", last)
    assert device.before["next"] == set()


def test_the_per_thread_stream_of_two_threads(device, launch):
    own, other = Stream(per_thread=True), Stream()
    launch(0, own)
    launch(1, own)
    in_another_thread(launch, 2, own)
    in_another_thread(launch, 3, own)
    launch(4, other)
    in_another_thread(launch, 5, own)
    launch(6, own)
    assert all(device.before[number] == set(range(number)) for number in range(7))


def test_the_host_waits_for_another_threads_stream(device, launch):
    own, waited = Stream(per_thread=True), []
    in_another_thread(launch, "there", own)
    launch.order._end.synchronize = lambda: waited.append(launch.order._end.end)
    launch.order.synchronize()
    assert waited == [{"there"}]
    assert not device.synchronized


def test_what_follows_a_kernel_on_its_stream_belongs_to_it(device, launch):
    own = Stream(per_thread=True)
    launch("kernel", own)
    device.launch("copy", 1, 1, b"", own)
    launch.order.extend(own)
    in_another_thread(launch, "next", own)
    assert device.before["next"] == {"kernel", "copy"}
