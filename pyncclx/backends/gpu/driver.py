"""The CUDA driver: errors of its calls as exceptions, and what it forbids while a stream is being captured."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cuda.bindings import driver

LIBRARY = ctypes.CDLL("libcuda.so.1")
_RELAXED = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED


def checked(result: tuple[Any, ...]) -> Any:
    """The value of a driver call, or its error as an exception."""
    status, *values = result
    if status != driver.CUresult.CUDA_SUCCESS:
        _, text = driver.cuGetErrorString(status)
        raise RuntimeError(f"CUDA driver: {status.name}: {text.decode() if text else 'unknown error'}")
    return values[0] if len(values) == 1 else values


def fail(status: int) -> None:
    """Raise the error that a driver call by ctypes has returned."""
    checked((driver.CUresult(status),))


@contextmanager
def beside_captures() -> Iterator[None]:
    """Have the driver do what it forbids while a stream of the thread is being captured, lest the graph be meant."""
    before = checked(driver.cuThreadExchangeStreamCaptureMode(_RELAXED))
    try:
        yield
    finally:
        checked(driver.cuThreadExchangeStreamCaptureMode(before))
