"""Streams as the CUDA driver takes them, and the captures that they are part of."""

from __future__ import annotations

from typing import Any

from cuda.bindings import driver

from .driver import checked

LEGACY_DEFAULT = (0, 1)  # names of the stream that cannot be captured, nor asked while others are
_PER_THREAD_DEFAULT = 2  # names another stream in each thread
_handles: dict[int, Any] = {}


def handle_of(stream: Any) -> Any:
    """The driver's handle of a CuPy stream."""
    try:
        return _handles[stream.ptr]
    except KeyError:
        return _handles.setdefault(stream.ptr, driver.CUstream(stream.ptr))


def is_capturing(stream: Any) -> bool:
    """Whether a stream is being captured in a graph: a cheaper question than in which."""
    return stream.ptr not in LEGACY_DEFAULT and bool(stream.is_capturing())


def can_be_left(stream: Any) -> bool:
    """Whether any thread may record an event on a stream: it is the same in all, and no capture forbids it."""
    try:
        return stream.ptr != _PER_THREAD_DEFAULT and not stream.is_capturing()
    except RuntimeError:  # the default stream, while one that it waits for is being captured
        return False


def capture_of(stream: Any) -> int:
    """The capture a stream takes part in; 0: none."""
    return int(checked(driver.cuStreamGetCaptureInfo(handle_of(stream)))[1]) if is_capturing(stream) else 0
