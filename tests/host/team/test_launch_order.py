"""The order of a communicator's launches on several streams, beside captures and from several threads."""

import threading

import pytest

from pyncclx.team.launch_order import LaunchOrder
from support.fake_streams import CaptureError, Device, Repeated, Stream


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


@pytest.mark.parametrize("where", ["of the capture", "another"])
def test_a_capture_that_is_invalidated(device, launch, where):
    """The call raises. When the capture has ended there is no graph, and the order is kept without it."""
    first, captured, other = Stream(), Stream(), Stream()
    launch("eager", first)
    captured.capture = 1
    launch("captured", captured)
    captured.invalidated = True
    with pytest.raises(CaptureError):
        launch("lost", captured)
    captured.end_capture()
    last = captured if where == "of the capture" else other
    launch("next", last)
    launch("after it", first)
    assert device.before["next"] == {"eager"}
    assert device.before["after it"] == {"eager", "next"}
    launch.order.synchronize()
    assert device.synchronized == [first]


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


def test_whether_it_is_over(device, launch):
    """A stream of the program's may have been captured when it had its last launch; those aside are never."""
    own, order = Stream(), launch.order
    device.is_idle, device.can_be_captured = lambda stream: True, lambda stream: stream is own
    launch("aside", order.aside(Stream()))
    assert order.is_over()
    launch("eager", own)
    own.capture = 1
    launch("captured", own)
    assert not order.is_over()


def test_a_per_thread_stream_before_a_capture(device, launch):
    """The end of its launch stays where it was."""
    launch("eager", Stream(per_thread=True))
    captured, last = Stream(), Stream()
    captured.capture = 1
    launch("captured", captured)
    launch.order.extend(captured)
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


def aside(launch, name, stream):
    """Launch something aside; return the stream that it is on."""
    where = launch.order.aside(stream)
    launch(name, where)
    return where


def test_what_is_launched_aside(device, launch):
    """It comes after the launches before and what the caller's stream has, and before the launches after it."""
    first, second = Stream(), Stream()
    launch(0, first)
    device.launch("own work", 1, 1, b"", second)
    where = aside(launch, 1, second)
    device.launch("next work", 1, 1, b"", second)
    assert aside(launch, 2, first) is where
    launch(3, first)
    assert device.before[1] == {0, "own work"}
    assert device.before["next work"] == {"own work"}
    assert device.before[2] == {0, 1, "own work"}
    assert device.before[3] == {0, 1, 2, "own work"}


def test_aside_in_a_capture(device, launch):
    """On a stream that joins the capture, and is joined again; eager launches aside go on beside it."""
    captured, eager = Stream(), Stream()
    launch("eager", eager)
    captured.capture = 1
    device.launch("own work", 1, 1, b"", captured)
    joined = aside(launch, "captured", captured)
    end = launch.order.mark(joined)
    device.launch("beside it", 1, 1, b"", captured)
    assert aside(launch, "eager aside", eager) is not joined
    end.order(captured)
    device.launch("after it", 1, 1, b"", captured)
    assert device.before["captured"] == {"own work"}
    assert device.before["beside it"] == {"own work"}
    assert device.before["after it"] == {"own work", "captured", "beside it"}
    assert device.before["eager aside"] == {"eager"}


def test_aside_in_two_captures_at_once(device, launch):
    first, second = Stream(), Stream()
    first.capture, second.capture = 1, 2
    assert aside(launch, "first", first) is not first
    assert aside(launch, "second", second) is second
    assert device.before["second"] == set()


def test_what_is_started_again_and_again(device, launch):
    """Each start comes after what its stream has and after the launches before, as an eager launch comes after it."""
    first, second = Stream(), Stream()
    starts = [Repeated(device, name) for name in ("a", "b", "c", "d")]
    where = launch.order.repeat_aside(starts[0], first)
    device.launch("own work", 1, 1, b"", second)
    assert launch.order.repeat_aside(starts[1], second) is where
    launch("eager", first)
    assert launch.order.repeat_aside(starts[2], second) is where
    device.launch("more work", 1, 1, b"", first)
    assert launch.order.repeat_aside(starts[3], first) is where
    assert [start.aside for start in starts] == [0, 1, 0, 1]
    assert device.before["a"] == set()
    assert device.before["b"] == {"a", "own work"}
    assert device.before["eager"] == {"a", "b", "own work"}
    assert device.before["c"] == {"a", "b", "own work", "eager"}
    assert device.before["d"] == {"a", "b", "c", "own work", "more work", "eager"}


def test_a_start_in_a_capture_between_others(device, launch):
    eager, captured = Stream(), Stream()
    captured.capture = 1
    first, inside, last = (Repeated(device, name) for name in ("first", "inside", "last"))
    where = launch.order.repeat_aside(first, eager)
    device.launch("own work", 1, 1, b"", captured)
    assert launch.order.repeat_aside(inside, captured).capture == 1
    assert launch.order.repeat_aside(last, eager) is where
    assert device.before["inside"] == {"own work"}
    assert device.before["last"] == {"first"}


def test_nothing_to_wait_for(device, launch):
    """Of a communicator without launches: what others have under way is no reason to wait."""
    launch.order.synchronize()
    launch.order.finish()
    assert not device.synchronized


def test_what_is_beside_the_launches(device, launch):
    """The host waits for the launches' stream and for those of copies and of waits for signals, each once."""
    own, beside = Stream(), Stream()
    launch("kernel", own)
    for _ in range(2):
        launch.order.note(beside)
    launch.order.finish()
    assert device.synchronized == [own, beside]


def test_streams_that_nobody_can_wait_for(device, launch):
    """A graph may be replayed on any stream, and a stream of each thread be another thread's."""
    launch.order.note(Stream(per_thread=True))
    launch.order.finish()
    assert device.synchronized == [None]
    other = LaunchOrder(device)
    captured = Stream()
    captured.capture = 1
    other.enqueue("captured", 1, 1, b"", captured)
    captured.capture = 0
    other.finish()
    assert device.synchronized == [None, None]
    device.is_idle = lambda stream: True
    assert other.is_busy()


def test_copies_and_signals_that_a_graph_holds(device, launch):
    """They may run at any time, on any stream: the host waits for the whole device."""
    stream = Stream()
    device.is_capturing = lambda stream: stream.capture > 0
    device.is_idle = lambda stream: True
    launch.order.note(stream)
    assert not launch.order.is_busy()
    stream.capture = 1
    launch.order.note(stream)
    stream.capture = 0
    assert launch.order.is_busy()
    launch.order.finish()
    assert device.synchronized == [None]
