"""CUDA events, and kernels prepared as one graph that can be launched often."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import cupy
from cuda.bindings import driver

from .driver import (
    LIBRARY,
    NEVER_CAPTURED,
    PER_THREAD_DEFAULT,
    POINTERS,
    RECORD,
    WAIT,
    capture_of,
    fail,
    is_capturing,
    record_event,
)
from .launch import Graph, Step

_NOT_READY = int(driver.CUresult.CUDA_ERROR_NOT_READY)
_query_event = LIBRARY.cuEventQuery


class Event:
    """CUDA event; `pointer` is its handle for calls through ctypes."""

    def __init__(self) -> None:
        self._owner = cupy.cuda.Event(disable_timing=True)
        self.pointer = ctypes.c_void_p(self._owner.ptr)
        self._on = self._capture = 0  # stream and capture of the last record
        self._then: Any = None  # stream that has been made to wait for the event

    @property
    def event(self) -> Any:
        """The driver's handle."""
        return driver.CUevent(self._owner.ptr)

    def record(self, stream: Any) -> None:
        """Record the event on a stream."""
        self._on, self._capture, self._then = stream.ptr, capture_of(stream), None
        record_event(self.pointer, stream)

    def record_eager(self, stream: Any) -> None:
        """Record the event on a stream that is not being captured; cheaper than `record`."""
        self._on, self._capture, self._then = stream.ptr, 0, None
        if status := RECORD(self.pointer, POINTERS[stream.ptr]):
            fail(status)

    def recorded(self, pointer: int) -> None:
        """Note that a graph launched on the stream with this handle records the event."""
        self._on, self._capture, self._then = pointer, 0, None

    def is_over(self) -> bool:
        """Return whether the work before the event has finished."""
        # An event in a capture cannot be queried: its work runs when the graph does.
        if self._capture:
            return True
        status = _query_event(self.pointer)
        if status not in (0, _NOT_READY):
            fail(status)
        return bool(status == 0)

    def order(self, then: Any) -> None:
        """Make `then` wait for the event, unless the event is in another capture.

        A captured stream cannot wait for work outside its capture, nor the other way round: see `GpuStreams.order`.
        """
        if then is self._then:
            return
        pointer = then.ptr
        # Equal per-thread handles may be streams of two threads.
        may_differ = pointer != self._on or pointer == PER_THREAD_DEFAULT
        if may_differ and (0 if pointer in NEVER_CAPTURED else capture_of(then)) == self._capture:
            if status := WAIT(POINTERS[pointer], self.pointer, 0):
                fail(status)
            # A stream that is captured later would have to wait again, so only streams that cannot be captured are
            # cached.
            self._then = then if pointer in NEVER_CAPTURED else None

    def order_eager(self, then: Any) -> None:
        """Make `then` wait for the event, cheaper than `order`; neither is in a capture."""
        if status := WAIT(POINTERS[then.ptr], self.pointer, 0):
            fail(status)

    def synchronize(self) -> None:
        """Wait on the host for the event, unless it is in a capture."""
        if not self._capture:
            self._owner.synchronize()


class Repeated:
    """Kernels prepared as one CUDA graph, which run one after the other.

    Parameters
    ----------
    launcher
        Function that launches one kernel; used if the stream is being captured.
    steps
        The kernels and their parameters. After a kernel with an `Event`, the graph records that event.
    """

    def __init__(self, launcher: Callable[..., None], steps: Sequence[Step]) -> None:
        self._launcher, self.steps = launcher, steps
        self._events = [step.event for step in steps if step.event is not None]
        self._begin, self.begun = Event(), [False]
        own = [step._replace(event=step.event and step.event.event) for step in steps]
        self._graph = Graph(own, self._begin.event, self.begun)

    def launch(self, stream: Any) -> None:
        """Launch the kernels as one graph, or add them to the graph being captured."""
        if is_capturing(stream):
            self._launch_each(stream)
        else:
            self._graph.launch(stream.ptr)
            self._note(stream)

    def launch_aside(self, stream: Any, aside: Any) -> bool:
        """Launch on `aside` after the work now on `stream`, and return True.

        If `stream` is being captured, do nothing and return False.
        """
        if is_capturing(stream):
            return False
        record_event(self._begin.pointer, stream)
        self._graph.launch(aside.ptr)
        self._note(aside)
        return True

    def _note(self, stream: Any) -> None:
        """Note in the events that the graph just launched on this stream records them."""
        for event in self._events:
            event.recorded(stream.ptr)

    def _launch_each(self, stream: Any) -> None:
        for step in self.steps:
            self._launcher(step.function, step.grid, step.block, step.parameters, stream)
            if step.event is not None:
                step.event.record(stream)
