"""Streams of the GPU: CuPy's, those of other libraries, and one beside them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import cupy
from cuda.bindings import driver

from .captures import can_be_left, capture_of, handle_of, is_capturing
from .driver import beside_captures, checked
from .events import Event
from .properties import GpuProperties


class GpuStreams(GpuProperties):
    """`backends.device.Streams` by streams of CuPy."""

    def __init__(self) -> None:
        super().__init__()
        self._stream: Any = None  # its own: see `_aside`
        self._event = checked(driver.cuEventCreate(driver.CUevent_flags.CU_EVENT_DISABLE_TIMING))
        self._ordering = threading.Lock()  # for the use of that event

    def current_stream(self) -> Any:
        """CuPy's current stream on this GPU."""
        return cupy.cuda.get_current_stream(self.ordinal)

    def external_stream(self, pointer: int) -> Any:
        """A stream of another library, by its handle."""
        return cupy.cuda.Stream.from_external(_Foreign(pointer))

    def new_stream(self) -> Any:
        """A stream that waits for no other, the default one included."""
        return cupy.cuda.Stream(non_blocking=True)

    def synchronize(self, stream: Any = None) -> None:
        """Wait on the host for a stream, or for the whole GPU."""
        if stream is None:
            self._gpu.synchronize()
        else:
            stream.synchronize()

    def order(self, first: Any, then: Any) -> None:
        """What is enqueued on `then` from now on waits for what is on `first` by now.

        A stream that is being captured and one that is not cannot wait for each other; when a graph runs is
        its owner's affair.
        """
        if first.ptr == then.ptr:
            return
        if capture_of(first) != capture_of(then):
            return
        with self._ordering:
            checked(driver.cuEventRecord(self._event, handle_of(first)))
            checked(driver.cuStreamWaitEvent(handle_of(then), self._event, 0))

    def event(self) -> Event:
        """An event to record."""
        return Event()

    def can_leave(self, stream: Any) -> bool:
        """Whether any thread may record an event on a stream."""
        return can_be_left(stream)

    def is_capturing(self, stream: Any) -> bool:
        """Whether a stream is being captured in a graph."""
        return is_capturing(stream)

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Make this GPU current for the thread; what that does is no part of a graph that another one captures."""
        self._gpu.use()
        with beside_captures():
            yield

    def _aside(self) -> Any:
        """A stream that follows no other."""
        if self._stream is None:
            self._stream = self.new_stream()
        return self._stream


class _Foreign:
    """A stream of another library in the form that CuPy takes."""

    def __init__(self, pointer: int) -> None:
        self.pointer = pointer

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.pointer
