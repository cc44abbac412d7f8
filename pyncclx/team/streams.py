"""The streams of a call: the one that it is enqueued on, and the one that its user continues on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..arrays.buffers import Buffer
from ..arrays.readers import torch_stream
from ..backends import Device
from ..requests.open_receives import let_receives_leave
from .plans import Producer

LEGACY_DEFAULT_STREAM = 1  # its number in array interfaces; it is 0 in CuPy


def stream_for(device: Any, buffers: Iterable[Buffer | Producer]) -> Any:
    """Return the stream to enqueue on, after it has been made to wait for the producers of the buffers.

    It is CuPy's current stream; for PyTorch tensors it is PyTorch's, on which their user continues.
    """
    stream = device.current_stream()
    if stream is None:  # the host device has none
        return None
    for buffer in buffers:
        if buffer.stream is not None and buffer.stream != (stream.ptr or LEGACY_DEFAULT_STREAM):
            producer = device.external_stream(buffer.stream)
            if buffer.of_torch:
                stream = producer
            else:
                let_receives_leave()
                device.order(producer, stream)
    return stream


def current_stream(device: Device, buffers: tuple[Buffer, ...]) -> Any:
    """Return the stream on which the user continues: CuPy's current one, for PyTorch's tensors PyTorch's."""
    if any(buffer.of_torch for buffer in buffers):
        return device.external_stream(torch_stream(device.ordinal))
    return device.current_stream()
