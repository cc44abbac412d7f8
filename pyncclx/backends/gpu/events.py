"""Events of the GPU, and prepared launches, which record them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import cupy
from cuda.bindings import driver

from .driver import (
    LIBRARY,
    PER_THREAD_DEFAULT,
    capture_of,
    fail,
    is_capturing,
    record_event,
    wait_for_event,
)
from .launch import Graph, Step

_NOT_READY = int(driver.CUresult.CUDA_ERROR_NOT_READY)
_query_event = LIBRARY.cuEventQuery


class Event:
    """A place in the order of a stream; `pointer` is its handle, for ctypes."""

    def __init__(self) -> None:
        self._owner = cupy.cuda.Event(disable_timing=True)
        self.pointer = ctypes.c_void_p(self._owner.ptr)
        self._on = self._capture = 0  # the stream and the capture it was recorded in

    @property
    def event(self) -> Any:
        """Return the driver's handle."""
        return driver.CUevent(self._owner.ptr)

    def record(self, stream: Any) -> None:
        """Move the event to the end of the work that the stream has now."""
        self._on, self._capture = stream.ptr, capture_of(stream)
        record_event(self.pointer, stream)

    def record_eager(self, stream: Any) -> None:
        """Do so where the stream is not being captured; cheaper than `record`."""
        self._on, self._capture = stream.ptr, 0
        record_event(self.pointer, stream)

    def recorded(self, pointer: int) -> None:
        """Take note that a graph, launched on the stream of this handle, records the event."""
        self._on, self._capture = pointer, 0

    def is_over(self) -> bool:
        """Return whether the work before the event is over."""
        if self._capture:  # it cannot be queried: its work runs when the graph does
            return True
        status = _query_event(self.pointer)
        if status not in (0, _NOT_READY):
            fail(status)
        return bool(status == 0)

    def order(self, then: Any) -> None:
        """Make `then` wait for the event; do nothing across the border of a capture, as `GpuStreams.order`."""
        may_differ = then.ptr != self._on or then.ptr == PER_THREAD_DEFAULT  # that of another thread, perhaps
        if may_differ and capture_of(then) == self._capture:
            wait_for_event(then, self.pointer)

    def synchronize(self) -> None:
        """Wait on the host for the event, unless it is in a capture."""
        if not self._capture:
            self._owner.synchronize()


class Repeated:
    """Kernels to be launched again and again, one after the other.

    Parameters
    ----------
    launcher
        Launches one kernel, for a stream that is being captured.
    steps
        The kernels; the `Event` of each is recorded behind it, if it has one.
    """

    def __init__(self, launcher: Callable[..., None], steps: Sequence[Step]) -> None:
        self._launcher, self.steps = launcher, steps
        self._events = [step.event for step in steps if step.event is not None]
        self._begin = Event()
        self._graph = Graph([step._replace(event=step.event and step.event.event) for step in steps], self._begin.event)

    def launch(self, stream: Any) -> None:
        """Enqueue them as a graph of their own, or in the graph that is being captured."""
        if is_capturing(stream):
            self._launch_each(stream)
        else:
            self._graph.launch(stream.ptr)
            self._note(stream)

    def launch_aside(self, stream: Any, aside: Any) -> bool:
        """Enqueue them on `aside`, after what `stream` has now; return False if that is being captured."""
        if is_capturing(stream):
            return False
        record_event(self._begin.pointer, stream)
        self._graph.launch(aside.ptr)
        self._note(aside)
        return True

    def _note(self, stream: Any) -> None:
        """Take note that a graph, launched on this stream, records the events."""
        for event in self._events:
            event.recorded(stream.ptr)

    def _launch_each(self, stream: Any) -> None:
        for step in self.steps:
            self._launcher(step.function, step.grid, step.block, step.parameters, stream)
            if step.event is not None:
                step.event.record(stream)
