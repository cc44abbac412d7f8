"""Which stream a call is enqueued on, and which one its user goes on with."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..arrays.buffers import Buffer
from ..arrays.readers import torch_stream
from ..backends import Device
from ..requests.open_receives import let_receives_leave
from .plans import Producer

LEGACY_DEFAULT_STREAM = 1  # its number in array interfaces; CuPy says 0


def stream_for(device: Any, buffers: Iterable[Buffer | Producer]) -> Any:
    """The stream to enqueue on, made to wait for the producers of the buffers.

    It is CuPy's current stream; for PyTorch tensors it is PyTorch's, where their user goes on.
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
    """The stream that its user goes on with: CuPy's current one, for PyTorch's tensors PyTorch's."""
    if any(buffer.of_torch for buffer in buffers):
        return device.external_stream(torch_stream(device.ordinal))
    return device.current_stream()
