"""The order of a communicator's launches: each follows the one before, whatever their streams are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..backends import Device, Event, Function, Repeated
from ..requests.open_receives import OPEN_RECEIVES, let_receives_leave

_NO_STREAM = object()


class LaunchOrder:
    """Launches the kernels of one communicator on this rank, one after the other.

    What a graph captures does not run now, so it is no launch that others wait for; the owner of the graph orders its
    replays. Inside one capture, captured launches follow each other. A call beside the capture of the very stream that
    had the last launch does not wait for that: CUDA records no event there until the capture ends.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._ready: Any = None  # a stream that the next launch needs nothing before
        self._stream: Any = None  # of the last launch, unless `_end` is its end
        self._end: Event | None = None  # of the last launch, if its stream is another one in each thread
        self._captured: Any = None  # the stream of the last captured launch

    def enqueue(
        self, function: Function, grid: int, threads: int, parameters: bytes, stream: Any, early: bool = False
    ) -> None:
        """Launch a kernel on `stream`; `parameters` are the bytes of its only parameter, which begins with a Team."""
        if stream is self._ready and not OPEN_RECEIVES:
            self._device.launch(function, grid, threads, parameters, stream, early)
        else:
            with self.following(stream):
                self._device.launch(function, grid, threads, parameters, stream, early)

    def repeat(self, repeated: Repeated, stream: Any) -> None:
        """Launch on `stream` what was prepared before."""
        if stream is self._ready and not OPEN_RECEIVES:
            repeated.launch(stream)
        else:
            with self.following(stream):
                repeated.launch(stream)

    @contextmanager
    def following(self, stream: Any) -> Iterator[None]:
        """Order what the block enqueues on `stream` behind the last launch here, and before no receive that is open."""
        let_receives_leave()
        if self._device.is_capturing(stream):
            self._follow_captured(stream)
            yield
            return
        if self._end is not None:
            self._end.order(stream)
        elif self._stream is not None and self._stream != stream:
            self._device.order(self._stream, stream)
        per_thread = self._device.is_per_thread(stream)
        self._ready, self._stream = (_NO_STREAM, None) if per_thread else (stream, stream)
        self._end = self._device.event() if per_thread else None
        yield
        if self._end is not None:
            self._end.record(stream)

    def _follow_captured(self, stream: Any) -> None:
        """Do so inside a capture; the last launch on a stream that has since joined the capture may be part of it."""
        for before in (self._stream, self._captured):
            if before is not None and before != stream:
                self._device.order(before, stream)
        self._ready, self._captured = _NO_STREAM, stream

    def extend(self, stream: Any) -> None:
        """Count what has been enqueued on `stream` since the last launch, copies for example, as part of it."""
        if self._end is not None:
            self._end.record(stream)

    def mark(self, stream: Any) -> Event:
        """Return an event at the end of what `stream` has."""
        event = self._device.event()
        event.record(stream)
        return event

    def synchronize(self) -> None:
        """Wait on the host until all launches are over; inside a capture nothing runs, and there is no wait."""
        if self._end is not None:
            self._end.synchronize()
            return
        last = self._captured if self._stream is None else self._stream
        if last is None or not self._device.is_capturing(last):
            self._device.synchronize(self._stream)
