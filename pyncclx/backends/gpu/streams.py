"""Streams of the GPU: CuPy's, those of other libraries, and the device's own."""

from __future__ import annotations

import ctypes
import operator
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import cupy

from ...errors import NotSupported
from . import driver
from .driver import LEGACY_DEFAULT, NEVER_CAPTURED, PER_THREAD_DEFAULT, POINTERS, beside_captures, capture_of
from .events import Event
from .properties import GpuProperties

# Other ranks wait for work on streams of this library, so that work has priority where the GPU has no room for all.
# CUDA reduces the number to the highest priority that it has.
# PyFR with 4 ranks on an H200: 4.1 to 5.3 ms a step in 4 runs without it, 3.7 to 5.1 ms in 7 runs with it.
_HIGHEST_PRIORITY = -(1 << 10)
_SUCCESS, _DESTROYED = 0, (400, 709)  # cudaErrorInvalidResourceHandle, cudaErrorContextIsDestroyed


class GpuStreams(GpuProperties):
    """`backends.device.Streams` by CuPy streams."""

    def __init__(self) -> None:
        super().__init__()
        # The device's own stream, which waits for no other. It is created now, because the driver may wait for kernels
        # before it creates a stream. A dump, for one, uses this stream while kernels wait for a rank that has died.
        self._stream = self.new_stream()
        self._event = cupy.cuda.Event(disable_timing=True)
        self._event_pointer = ctypes.c_void_p(self._event.ptr)
        self._ordering = threading.Lock()  # guards `_event`
        self._of_thread = threading.local()

    def current_stream(self) -> Any:
        # Libraries that name a GPU in each call may have left another one current.
        if cupy.cuda.runtime.getDevice() != self.ordinal:
            self._gpu.use()
        return cupy.cuda.get_current_stream(self.ordinal)

    def can_be_captured(self, stream: Any) -> bool:
        return stream.ptr not in NEVER_CAPTURED

    def private_stream(self) -> Any:
        stream = getattr(self._of_thread, "stream", None)
        if stream is None:
            stream = self._of_thread.stream = self.new_stream()
            NEVER_CAPTURED.add(stream.ptr)
            # A later stream may get the same handle.
            weakref.finalize(stream, NEVER_CAPTURED.discard, stream.ptr)
        return stream

    def current_and_private(self) -> tuple[Any, Any]:
        # As `current_stream`.
        if cupy.cuda.runtime.getDevice() != self.ordinal:
            self._gpu.use()
        current = cupy.cuda.get_current_stream(self.ordinal)
        if current.ptr not in LEGACY_DEFAULT:
            return current, None
        return current, getattr(self._of_thread, "stream", None) or self.private_stream()

    def named_stream(self, value: Any) -> Any:
        if isinstance(value, cupy.cuda.Stream):
            return value
        if hasattr(value, "__cuda_stream__"):
            return cupy.cuda.Stream.from_external(value)
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise TypeError(f"stream is {value!r}; give CuPy's, an object with __cuda_stream__, a handle, or None")
        # 0 and 1 are handles of one stream, but only 1 works in every call.
        return self.external_stream(operator.index(value) or 1)

    def external_stream(self, pointer: int) -> Any:
        return cupy.cuda.Stream.from_external(_Foreign(pointer))

    def new_stream(self) -> Any:
        # Non-blocking streams do not wait for the default stream either.
        with beside_captures():
            return cupy.cuda.Stream(non_blocking=True, priority=_HIGHEST_PRIORITY)

    def synchronize(self, stream: Any = None) -> None:
        if stream is None:
            self._gpu.synchronize()
        else:
            try:
                stream.synchronize()
            except cupy.cuda.runtime.CUDARuntimeError as error:
                if error.status not in _DESTROYED:
                    raise
                # The work of a destroyed stream continues, so wait for the whole device.
                self._gpu.synchronize()

    def order(self, first: Any, then: Any) -> None:
        """Make `then` wait for the work now on `first`; do nothing between two captures.

        A stream in a capture cannot wait for one outside it: the owner of the graph decides when it runs.
        """
        if first.ptr == then.ptr:
            return
        if capture_of(first) == capture_of(then):
            self.order_eager(first, then)

    def order_eager(self, first: Any, then: Any) -> None:
        event = self._event_pointer
        with self._ordering:
            if status := driver.RECORD(event, POINTERS[first.ptr]) or driver.WAIT(POINTERS[then.ptr], event, 0):
                driver.fail(status)

    def fork(self, stream: Any, side: Any) -> bool:
        capture = capture_of(side)
        if capture and capture != capture_of(stream):
            return False
        # An event recorded in a capture adds the waiting stream to the capture.
        self.order_eager(stream, side)
        return True

    def call_between(self, stream: Any, function: Callable[[], object]) -> None:
        if driver.is_capturing(stream):
            raise NotSupported("MPI moves the data between nodes here, which no graph can hold; call it outside")
        stream.synchronize()
        function()

    def is_idle(self, stream: Any) -> bool:
        with self.attached():
            # Query by the driver: CUDA's runtime would keep an error of the query for its next caller.
            return self.is_capturing(stream) or driver.query(stream) in (_SUCCESS, *_DESTROYED)

    def event(self) -> Event:
        return Event()

    def can_leave(self, stream: Any) -> bool:
        try:
            # The handle must name the same stream in all threads, and no capture may forbid recording an event.
            return not self.is_per_thread(stream) and not stream.is_capturing()
        except RuntimeError:
            # Raised for the default stream while a stream that it waits for is being captured.
            return False

    def is_capturing(self, stream: Any) -> bool:
        if stream.ptr in NEVER_CAPTURED:
            return False
        try:
            return bool(stream.is_capturing())
        except cupy.cuda.runtime.CUDARuntimeError as error:
            if error.status not in _DESTROYED:
                raise
            return False

    def is_per_thread(self, stream: Any) -> bool:
        return bool(stream.ptr == PER_THREAD_DEFAULT)

    @contextmanager
    def attached(self) -> Iterator[None]:
        self._gpu.use()
        with beside_captures():
            yield


class _Foreign:
    """Stream of another library, in the form that CuPy takes."""

    def __init__(self, pointer: int) -> None:
        self.pointer = pointer

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.pointer
