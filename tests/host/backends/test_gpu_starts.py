"""What a start of a persistent collective asks of the CUDA driver, on a driver that does nothing."""

import ctypes
from unittest.mock import MagicMock

import pytest
from cuda.bindings import driver

from pyncclx.team.launch_order import LaunchOrder
from support import fake_driver

NOT_READY = driver.CUresult.CUDA_ERROR_NOT_READY


@pytest.fixture
def fake():
    with fake_driver.installed() as fake:
        yield fake


@pytest.fixture
def device(fake, monkeypatch):
    monkeypatch.setattr(fake.module("driver").GpuProperties, "__init__", lambda self: None)
    return fake.module("streams").GpuStreams()


def prepared(fake, *, launched):
    """Two kernels with an event behind each; in a capture they are appended to `launched`."""
    event, step = fake.module("events").Event, fake.module("launch").Step
    steps = [step(ctypes.c_void_p(0xF), 1, 32, bytes(16), event()) for _ in range(2)]
    return fake.module("events").Repeated(lambda *arguments: launched.append(arguments[-1]), steps)


def test_streams_of_the_library_come_before_the_programs(device):
    assert device.new_stream().priority < 0


def test_streams_are_used_again(fake, device):
    """The driver may wait for kernels before it creates one: streams are used again, once their work has ended."""
    first = [device.new_stream() for _ in range(20)]  # more than the device has from the start
    handles = {stream.ptr for stream in first}
    there = len(fake.streams)
    del first
    again = [device.new_stream() for _ in range(20)]
    assert {stream.ptr for stream in again} == handles
    assert len(fake.streams) == there
    del again
    fake.driver["cuStreamQuery"].return_value = NOT_READY, None
    assert device.new_stream().ptr not in handles
    assert "cuStreamDestroy" not in str(fake.library.calls)


def test_a_start_asks_once_and_makes_two_calls(fake, device):
    order, stream, repeated = LaunchOrder(device), fake.Stream(), prepared(fake, launched=[])
    aside = order.repeat_aside(repeated, stream)
    fake.library.taken()
    assert order.repeat_aside(repeated, stream) is aside
    asked, recorded, launched = fake.library.taken()
    assert asked == ("is_capturing", stream.ptr)
    assert recorded == ("cuEventRecord", int(repeated._begin.event), stream.ptr)
    assert launched == ("graphLaunch", repeated._graph._graph, aside.ptr)
    assert {step.event._on for step in repeated.steps} == {aside.ptr}


def test_the_default_stream_is_not_asked(fake, device):
    order, repeated = LaunchOrder(device), prepared(fake, launched=[])
    default = fake.Stream()
    default.ptr = 0
    order.repeat_aside(repeated, default)
    fake.library.taken()
    order.repeat_aside(repeated, default)
    assert [name for name, *_ in fake.library.taken()] == ["cuEventRecord", "graphLaunch"]


def test_private_streams_are_not_asked(fake, device):
    """No capture can have them. A stream of the program that gets the handle of one later is asked again."""
    device.ordinal = 0
    private, event, later = device.private_stream(), fake.module("events").Event(), fake.Stream()
    current = fake.Stream()
    current.ptr = 0
    with current:
        assert device.current_and_private() == (current, private)
    fake.library.taken()
    device.order(current, private)
    event.record(private)
    assert not device.is_capturing(private)
    assert not device.can_be_captured(private)
    assert "is_capturing" not in [name for name, *_ in fake.library.taken()]
    later.ptr, later.capture = private.ptr, 1
    device._of_thread.__dict__.clear()
    fake.streams.clear()
    del private
    assert device.is_capturing(later)
    assert device.can_be_captured(later)


def test_an_error_of_any_call_is_raised(fake, device, monkeypatch):
    order, stream = LaunchOrder(device), fake.Stream()
    repeated = prepared(fake, launched=[])
    order.repeat_aside(repeated, stream)

    def failing(*arguments):
        raise RuntimeError("of the launch")

    with monkeypatch.context() as patch:
        patch.setattr(fake.module("launch"), "launch_graph", failing)
        with pytest.raises(RuntimeError, match="of the launch"):
            order.repeat_aside(repeated, stream)
    monkeypatch.setattr(fake.module("driver"), "RECORD", lambda *arguments: 400)
    monkeypatch.setattr(
        fake.module("driver").driver, "cuGetErrorString", lambda status: (0, b"invalid resource handle")
    )
    with pytest.raises(RuntimeError, match="invalid resource handle"):
        order.repeat_aside(repeated, stream)


def test_the_graph_begins_with_a_wait_for_the_callers_stream(fake):
    """The event that a start records on the caller's stream; each kernel comes behind the node before it."""
    prepared(fake, launched=[])
    (waited,) = fake.driver["cuGraphAddEventWaitNode"].call_args_list
    assert waited.args[1:3] == (None, 0)
    first, second = (call.args[1] for call in fake.driver["cuGraphAddKernelNode"].call_args_list)
    assert first == [fake.driver["cuGraphAddEventWaitNode"].return_value[1]]
    assert second == [fake.driver["cuGraphAddKernelNode"].return_value[1]]


def test_a_start_in_a_capture_launches_kernels(fake, device):
    """Its stream joins the capture, and gets the kernels themselves."""
    order, stream, launched = LaunchOrder(device), fake.Stream(), []
    repeated = prepared(fake, launched=launched)
    eager = order.repeat_aside(repeated, stream)
    stream.capture, joined = 1, fake.Stream()
    joined.capture = 1  # by the event that it waits for
    device.new_stream = lambda: joined
    fake.library.taken()
    assert order.repeat_aside(repeated, stream) is joined is not eager
    assert launched == [joined, joined]
    assert "graphLaunch" not in [name for name, *_ in fake.library.taken()]


@pytest.mark.parametrize("status", [400, 709])
def test_a_stream_that_the_program_has_destroyed(fake, device, monkeypatch, status):
    """What was on it is over for whoever asks; a wait is one for the device."""

    class CUDARuntimeError(RuntimeError):
        def __init__(self, status):
            self.status = status

    def fail():
        raise CUDARuntimeError(failing)

    fake.runtime.CUDARuntimeError = CUDARuntimeError
    stream, failing, device._gpu = fake.Stream(), status, MagicMock()
    stream.is_capturing = stream.synchronize = fail
    fake.driver["cuStreamQuery"].return_value = (driver.CUresult(status),)
    assert device.is_idle(stream)
    assert not device.is_capturing(stream)
    order = LaunchOrder(device)
    order.note(stream)
    assert not order.is_busy()
    order.finish()
    device._gpu.synchronize.assert_called_once_with()
    failing = 999
    with pytest.raises(CUDARuntimeError):
        device.is_idle(stream)


@pytest.mark.parametrize(("status", "is_idle"), [(0, True), (600, False)])
def test_a_stream_with_work_and_one_without(fake, device, status, is_idle):
    device._gpu = MagicMock()
    fake.driver["cuStreamQuery"].return_value = (driver.CUresult(status),)
    assert device.is_idle(fake.Stream()) == is_idle
