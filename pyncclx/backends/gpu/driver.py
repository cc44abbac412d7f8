"""CUDA driver calls: errors as exceptions, stream handles, and stream captures."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cuda.bindings import driver

LIBRARY = ctypes.CDLL("libcuda.so.1")
# Two handles of one stream. It cannot be captured, nor queried while others are captured.
LEGACY_DEFAULT = (0, 1)
# Handles of streams that no capture can have: the default one, and those that the program cannot name.
NEVER_CAPTURED = set(LEGACY_DEFAULT)
# This handle names a different stream in each thread.
PER_THREAD_DEFAULT = 2
_RELAXED = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
_handles: dict[int, Any] = {}


class _Pointers(dict[int, ctypes.c_void_p]):
    """Handles of streams as ctypes passes them without conversion, by their numbers."""

    def __missing__(self, handle: int) -> ctypes.c_void_p:
        return self.setdefault(handle, ctypes.c_void_p(handle))


POINTERS = _Pointers()
# Called through ctypes: a nonblocking call makes both, and cuda.bindings takes about a microsecond more for each.
RECORD, WAIT = LIBRARY.cuEventRecord, LIBRARY.cuStreamWaitEvent


def checked(result: tuple[Any, ...]) -> Any:
    """Return the value of a driver call; raise RuntimeError for its error."""
    status, *values = result
    if status != driver.CUresult.CUDA_SUCCESS:
        _, text = driver.cuGetErrorString(status)
        raise RuntimeError(f"CUDA driver: {status.name}: {text.decode() if text else 'unknown error'}")
    return values[0] if len(values) == 1 else values


def fail(status: int) -> None:
    """Raise the error for the status of a driver call made through ctypes."""
    checked((driver.CUresult(status),))


def record_event(event: ctypes.c_void_p, stream: Any) -> None:
    """Record an event on a CuPy stream."""
    if status := RECORD(event, POINTERS[stream.ptr]):
        fail(status)


def wait_for_event(stream: Any, event: ctypes.c_void_p) -> None:
    """Make a CuPy stream wait for an event."""
    if status := WAIT(POINTERS[stream.ptr], event, 0):
        fail(status)


def handle_of(stream: Any) -> Any:
    """Return the driver's handle of a CuPy stream."""
    try:
        return _handles[stream.ptr]
    except KeyError:
        return _handles.setdefault(stream.ptr, driver.CUstream(stream.ptr))


def is_capturing(stream: Any) -> bool:
    """Return whether a stream is being captured; cheaper than `capture_of`."""
    return stream.ptr not in NEVER_CAPTURED and bool(stream.is_capturing())


def capture_of(stream: Any) -> int:
    """Return the number of the capture that a stream is in; 0 for none."""
    if stream.ptr in NEVER_CAPTURED or not stream.is_capturing():
        return 0
    return int(checked(driver.cuStreamGetCaptureInfo(handle_of(stream)))[1])


def query(stream: Any) -> int:
    """Return the driver's status of a CuPy stream that is not being captured.

    0 if it is idle, 600 if not, otherwise an error.
    """
    return int(driver.cuStreamQuery(handle_of(stream))[0])


@contextmanager
def beside_captures() -> Iterator[None]:
    """Allow calls that the driver forbids during a capture; they are not captured."""
    before = checked(driver.cuThreadExchangeStreamCaptureMode(_RELAXED))
    try:
        yield
    finally:
        checked(driver.cuThreadExchangeStreamCaptureMode(before))
