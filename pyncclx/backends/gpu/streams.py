"""Streams of the GPU: CuPy's, those of other libraries, and the device's own."""

from __future__ import annotations

import operator
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import cupy

from ...errors import NotSupported
from . import driver
from .driver import (
    LEGACY_DEFAULT,
    NEVER_CAPTURED,
    PER_THREAD_DEFAULT,
    POINTERS,
    GpuProperties,
    beside_captures,
    capture_of,
)
from .events import Event

# Other ranks wait for work on streams of this library, so it gets the highest priority; CUDA clamps the number. PyFR
# with 4 ranks on an H200 took 3.7 to 5.1 ms a step in 7 runs with it, 4.1 to 5.3 ms in 4 runs without it.
_HIGHEST_PRIORITY = -(1 << 10)
_SPARE_STREAMS = 8  # created with the device; one took 0.1 ms (H200, 2026-11-29)
_SUCCESS, _DESTROYED = 0, (400, 709)  # cudaErrorInvalidResourceHandle, cudaErrorContextIsDestroyed


class GpuStreams(GpuProperties):
    """`backends.device.Streams` by CuPy streams."""

    def __init__(self) -> None:
        super().__init__()
        # Spare streams. Before it creates a stream, the driver may wait for kernels, which may wait for other ranks. So
        # some streams are created now, and all are reused.
        with beside_captures():
            self._spare = deque(_create_stream() for _ in range(_SPARE_STREAMS))
        # The device's own non-blocking stream. Dumps of the flight recorder, for example, use it while kernels wait for
        # a dead rank.
        self._stream = self.new_stream()
        # Events that no `order_eager` is using. In the middle of one, another thread may call it, and so may a signal
        # handler on the same thread.
        self._events = [Event()]
        self._of_thread = threading.local()

    def current_stream(self) -> Any:
        # Make this device current: a library that selects a GPU in each call may have left another one current.
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
        # `current_stream` makes the device current too.
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
        # 0 and 1 are handles of the same (default) stream, but only 1 works in every call.
        return self.external_stream(operator.index(value) or 1)

    def external_stream(self, pointer: int) -> Any:
        return cupy.cuda.Stream.from_external(_Foreign(pointer))

    def new_stream(self) -> Any:
        with beside_captures():
            owner = self._idle() or _create_stream()
        stream = self.external_stream(owner.ptr)
        weakref.finalize(stream, self._spare.append, owner).atexit = False
        return stream

    def _idle(self) -> Any:
        """Take a spare stream whose work has ended; return None if there is none."""
        for _ in range(len(self._spare)):
            with suppress(IndexError):  # another thread has taken it
                owner = self._spare.popleft()
                if not owner.is_capturing() and driver.query(owner) == _SUCCESS:
                    return owner
                self._spare.append(owner)
        return None

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
        """Make `then` wait for the work now on `first`, unless their captures differ.

        A stream in a capture cannot wait for a stream outside it, because the graph's owner decides when the graph
        runs.
        """
        if first.ptr == then.ptr:
            return
        if capture_of(first) == capture_of(then):
            self.order_eager(first, then)

    def order_eager(self, first: Any, then: Any) -> None:
        try:
            event = self._events.pop()
        except IndexError:
            event = Event()
        pointer = event.pointer
        if status := driver.RECORD(pointer, POINTERS[first.ptr]) or driver.WAIT(POINTERS[then.ptr], pointer, 0):
            driver.fail(status)
        self._events.append(event)

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
            # The driver is queried because CUDA's runtime would report an error of the query to its next caller.
            return self.is_capturing(stream) or driver.query(stream) in (_SUCCESS, *_DESTROYED)

    def event(self) -> Event:
        return Event()

    def can_leave(self, stream: Any) -> bool:
        try:
            # The handle must denote the same stream in all threads. A captured stream cannot record an event for
            # another thread.
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


def _create_stream() -> Any:
    # Non-blocking streams do not wait for the default stream either.
    return cupy.cuda.Stream(non_blocking=True, priority=_HIGHEST_PRIORITY)


class _Foreign:
    """Stream of another library, in the form that CuPy takes."""

    def __init__(self, pointer: int) -> None:
        self.pointer = pointer

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.pointer
