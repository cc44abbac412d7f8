"""The streams of a call: where it is enqueued, and where the program continues.

Normally both are CuPy's current stream, or, for PyTorch tensors, PyTorch's current stream. If the communicator has a
`stream`, both are that stream. If calls block the host and the program has chosen no stream, calls use one of pyncclx's
own streams, which waits for the arrays' producers only. The program's stream would be the legacy default stream, which
waits for all work on most other streams.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any, Protocol

from ..arrays.buffers import Buffer
from ..arrays.protocols import read_protocol
from ..arrays.readers import read_memory, read_numpy, reader_of, torch_stream, torch_streams
from ..backends import Device
from ..requests.open_receives import OPEN_RECEIVES, let_receives_leave
from .plans import Producer

LEGACY_DEFAULT_STREAM = 1  # its number in array interfaces; CuPy uses 0


class Caller(Protocol):
    """The properties of a caller that choose its streams.

    Attributes
    ----------
    blocking : str
        "host" if calls return when their results are ready.
    stream : stream or None
        The stream that the user has set.
    """

    blocking: str
    stream: Any


class AnyCaller:
    """A caller without settings."""

    blocking, stream = "stream", None


ANY_CALLER = AnyCaller()


class Enqueuing:
    """A caller whose operation is enqueued, whether its calls block the host or not."""

    blocking = "stream"

    def __init__(self, caller: Caller) -> None:
        self.stream = caller.stream


def stream_for(
    device: Any, buffers: Iterable[Buffer | Producer], caller: Caller = ANY_CALLER, of_current: bool | None = None
) -> Any:
    """Return the stream to enqueue on, after making it wait for the producers.

    Parameters
    ----------
    device : Device
    buffers : iterable
    caller : Caller
    of_current : bool, optional
        Whether the current stream produces a buffer; computed if it is None.
    """
    if caller.stream is None and caller.blocking == "host":
        stream, other = device.current_and_private()
    else:
        stream, other = device.current_stream(), caller.stream
    if other is not None:
        # Neither the default stream nor the private one in its place can be in a capture.
        order = device.order_eager if caller.stream is None else device.order
        return _after_producers(device, buffers, stream, other, of_current, order)
    if stream is None:  # the host device has none
        return None
    for buffer in buffers:
        if buffer.stream is not None and buffer.stream != (stream.ptr or LEGACY_DEFAULT_STREAM):
            producer = device.external_stream(buffer.stream)
            if buffer.of_torch:
                # The current stream may still be using an array's memory, which it has allocated or filled with zeros.
                if of_current:
                    device.order(stream, producer)
                stream = producer
            else:
                let_receives_leave()
                device.order(producer, stream)
    return stream


def current_stream(device: Device, buffers: Collection[Buffer | Producer], caller: Caller = ANY_CALLER) -> Any:
    """Return the stream on which the program continues after a call."""
    if caller.stream is None and caller.blocking == "host":
        stream, other = device.current_and_private()
    else:
        stream, other = device.current_stream(), caller.stream
    if other is not None:
        return other
    if buffers and any(buffer.of_torch for buffer in buffers):
        return device.external_stream(torch_stream(device.ordinal))
    return stream


def wait_for_program(device: Device, caller: Caller = ANY_CALLER, used: Iterable[Any] = ()) -> None:
    """Wait on the host for the work that the program has enqueued.

    This does not include nonblocking collectives and messages, whose kernels run on pyncclx's own streams. Such a
    kernel may wait for a call that another rank makes only after this rank has continued.

    Parameters
    ----------
    device : Device
    caller : Caller
        If the caller has no `stream` and its calls do not block the host, the program may use several streams. In this
        case, wait for all streams that the legacy default stream waits for (all streams except those created as
        non-blocking), and for PyTorch's current stream.
    used : iterable of streams
        Further streams to wait for.
    """
    current = device.current_stream()
    streams = [*used, current if caller.stream is None else caller.stream]
    if current is not None and caller.stream is None and caller.blocking != "host":
        streams += map(device.external_stream, torch_streams(device.ordinal))
        end = device.event()  # it follows the work of all streams that this one waits for
        end.record(device.external_stream(LEGACY_DEFAULT_STREAM))
        end.synchronize()
    for stream in {id(each): each for each in streams}.values():
        device.synchronize(stream)


def is_of_current(buffers: Iterable[Any]) -> bool:
    """Return whether the current stream may still be writing a buffer.

    Only buffers that name no stream count. Arrays whose interface has no stream, and pointers that look like host
    objects, need no wait.
    """
    return any(buffer.stream is None and not _is_ready(buffer.owner) for buffer in buffers)


def _is_ready(owner: Any) -> bool:
    array = owner[0] if isinstance(owner, (list, tuple)) and owner else owner
    read = reader_of(array)
    if read is read_numpy or read is read_memory:
        return True
    # The current stream already waits for DLPack arrays; Numba's arrays on the default stream name no stream.
    has_interface = read is read_protocol and hasattr(array, "__cuda_array_interface__")
    return has_interface and not type(array).__module__.startswith("numba")


def _after_producers(
    device: Any,
    buffers: Iterable[Buffer | Producer],
    current: Any,
    stream: Any,
    of_current: bool | None,
    order: Callable[[Any, Any], None],
) -> Any:
    """Return `stream` after making it wait for all producers of the buffers."""
    if of_current is None:
        buffers = tuple(buffers)
        of_current = is_of_current(buffers)
    follows, producers = of_current and current is not stream, {}
    for each in buffers:
        if each.stream:
            number = torch_stream(device.ordinal) if each.of_torch else each.stream
            producers[number] = device.external_stream(number)
    if OPEN_RECEIVES and (follows or producers):
        let_receives_leave()
    for producer in producers.values():
        device.order(producer, stream)
    if follows:
        order(current, stream)
    return stream
