"""The order of a communicator's kernels: one after the other, on any stream."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..backends import Device, Event, Function, Repeated
from ..requests.open_receives import OPEN_RECEIVES, let_receives_leave
from .kept import End, Kept, UsedStreams

_NO_STREAM, _ABSENT = object(), object()


class LaunchOrder:
    """Launches one communicator's kernels on this rank so that they run one at a time.

    A captured launch does not run during the capture, so later launches outside of it do not wait for it; the owner of
    the graph orders the replays. Inside one capture, launches follow each other. If a capture of the last launch's
    stream begins, a call on another stream does not wait for that launch, because CUDA records no event on a captured
    stream.

    Nonblocking and persistent calls are launched aside: on a stream of the communicator, so that the caller's
    subsequent work does not wait for them. Several such streams run at once as far as the hardware allows. CUDA maps
    all streams of a process to a few queues (CUDA_DEVICE_MAX_CONNECTIONS), and in one queue each kernel waits for the
    previous one. If collectives are in flight on more streams than queues, and the ranks began them in different
    orders, the ranks may wait for each other until PYNCCLX_TIMEOUT. All their kernels must also fit on the GPU
    together.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self.kept = Kept()
        self._ready: Any = _NO_STREAM  # stream whose next launch needs no wait, if nothing is kept
        self._stream: Any = _NO_STREAM  # stream of the last launch, unless `_end` marks its end
        self._beside = UsedStreams(device)  # streams with work that is not ordered with launches
        self._captured_beside = False  # whether a graph has work that is not ordered with launches
        self._end: Event | None = None  # end of the last launch, if its handle names another stream in each thread
        self._captured: Any = _NO_STREAM  # stream of the last captured launch
        self._is_captured = False  # whether the last `follow` was for a captured stream
        self._may_be_captured = False  # a launch on a ready stream may have been captured
        self._asides: dict[bool, Any] = {}  # streams for launches aside, by whether they are captured
        # Events that requests have returned. A new event costs more than a record.
        self.spare_events: list[Event] = []

    def enqueue(
        self, function: Function, grid: int, threads: int, parameters: bytes, stream: Any, early: bool = False
    ) -> None:
        """Launch a kernel on `stream`.

        `parameters` are the bytes of its only parameter, which begins with a Team.
        """
        if stream is self._ready and not OPEN_RECEIVES:
            self._device.launch(function, grid, threads, parameters, stream, early)
        else:
            with self.following(stream):
                self._device.launch(function, grid, threads, parameters, stream, early)

    def repeat(self, repeated: Repeated, stream: Any) -> None:
        """Launch a prepared kernel on `stream`."""
        if stream is self._ready and not OPEN_RECEIVES:
            repeated.launch(stream)
        else:
            with self.following(stream):
                repeated.launch(stream)

    def repeat_aside(self, repeated: Repeated, stream: Any) -> Any:
        """Launch a prepared kernel aside, and return its stream. See `aside`."""
        aside = self._asides.get(False, _ABSENT)
        if aside is self._ready and not OPEN_RECEIVES and repeated.launch_aside(stream, aside):
            return aside
        aside = self.aside(stream)
        self.repeat(repeated, aside)
        return aside

    @contextmanager
    def following(self, stream: Any) -> Iterator[None]:
        """Order work that a ``with`` block enqueues on `stream` as the next launch.

        The work runs after the communicator's last launch, and the next launch runs after the work. Open receives move
        to other streams first, because behind the work their kernels could not run.
        """
        self.follow(stream)
        yield
        self.extend(stream)

    def follow(self, stream: Any) -> None:
        """Order the next work on `stream` like `following`; call `extend` after that work."""
        if stream is self._ready and not OPEN_RECEIVES:
            return
        let_receives_leave()
        self._is_captured = self._device.is_capturing(stream)
        if self._is_captured:
            self._follow_captured(stream)
            return
        if self.kept.entries:
            self.kept.sweep()
        if self._end is not None:
            self._end.order(stream)
        elif self._stream is not _NO_STREAM and self._stream != stream:
            self._device.order(self._stream, stream)
        per_thread = self._device.is_per_thread(stream)
        ready = _NO_STREAM if per_thread or self.kept.entries else stream
        self._ready, self._stream = ready, _NO_STREAM if per_thread else stream
        self._end = self._device.event() if per_thread else None
        self._may_be_captured |= self._device.can_be_captured(stream) and stream is not self._asides.get(False)

    def _follow_captured(self, stream: Any) -> None:
        """Order work of a captured stream. The last launch may be in the same capture."""
        for before in (self._stream, self._captured):
            if before is not _NO_STREAM and before != stream:
                self._device.order(before, stream)
        self._ready, self._captured = _NO_STREAM, stream

    def aside(self, stream: Any) -> Any:
        """Make the communicator's own stream wait for `stream`, and return it.

        Nonblocking and persistent calls launch their kernels there. If `stream` is being captured, the returned stream
        joins the capture. If the own stream is already in another capture, return `stream` itself.
        """
        capturing = self._device.is_capturing(stream)
        aside = self._aside(capturing)
        if capturing:
            return aside if self._device.fork(stream, aside) else stream
        self._device.order_eager(stream, aside)
        if stream is self._stream:  # work on it is then ordered after the last launch as well
            self._ready, self._stream = _NO_STREAM if self.kept.entries else aside, aside
        return aside

    def aside_after(self, event: Event) -> Any:
        """Return the communicator's own stream, after making it wait for an event.

        Any thread may have recorded the event.
        """
        aside = self._aside(False)
        event.order(aside)
        return aside

    def _aside(self, capturing: bool) -> Any:
        if capturing not in self._asides:
            self._asides[capturing] = self._device.new_stream()
        return self._asides[capturing]

    def keep(self, end: End, arrays: Any) -> None:
        """Keep arrays until the event `end`; a later launch releases them.

        A destructor may call this at any time.
        """
        self.kept.add(end, arrays)
        self._ready = _NO_STREAM

    def keep_left(self, stream: Any, arrays: Any) -> None:
        """Keep the arrays of a call that has raised until `stream` no longer uses them."""
        self.keep(self.mark(stream), arrays)

    def record_aside(self, event: Event) -> None:
        """Record an event at the end of the launches aside."""
        event.record_eager(self._asides[False])

    def keep_left_aside(self, arrays: Any) -> None:
        """Keep the arrays of a launch aside whose call has raised until it has ended."""
        if False in self._asides:
            self.keep_left(self._asides[False], arrays)

    def extend(self, stream: Any) -> None:
        """Make the next launch also wait for work enqueued on `stream` since the last one."""
        if self._end is not None and not self._is_captured:
            self._end.record(stream)

    def mark(self, stream: Any) -> Event:
        """Return an event recorded at the end of the work on `stream`."""
        try:
            event = self.spare_events.pop()
        except IndexError:
            event = self._device.event()
        if stream is self._asides.get(False, _ABSENT):
            event.record_eager(stream)
        else:
            event.record(stream)
        return event

    @property
    def is_unused(self) -> bool:
        """Whether nothing has been launched on this communicator."""
        return self._end is None and self._stream is _NO_STREAM and self._captured is _NO_STREAM

    @property
    def has_graphs(self) -> bool:
        """Whether a graph has captured a launch, which may then run at any time."""
        return self._captured_beside or self._captured is not _NO_STREAM

    def is_busy(self) -> bool:
        """Return whether a launch runs, or a graph may run one. Any thread may call this."""
        streams = [self._stream, *list(self._beside.values()), *self._asides.values()]
        return self.has_graphs or not self._are_over(streams)

    def note(self, stream: Any) -> None:
        """Note that unordered work, such as a wait for a signal, will be enqueued next."""
        if stream is not None and self._device.is_capturing(stream):
            self._captured_beside = True
        elif stream is not self._beside.last:
            self._beside.add(stream)

    def is_over(self) -> bool:
        """Return whether all launches have ended, for the thread that launches them.

        It is false as soon as a graph may have captured a launch. To ask at each launch whether its stream is being
        captured would cost too much. So it is also false if a stream could have been captured, even if none was.
        """
        if self._may_be_captured:
            return False
        # Stream None is synchronous: a call returns when its kernel has ended. So unfinished work on it belongs to
        # another thread.
        streams = [stream for stream in (self._stream, *self._asides.values()) if stream is not None]
        return not self.has_graphs and self._are_over(streams)

    def _are_over(self, streams: list[Any]) -> bool:
        running = any(not self._device.is_idle(stream) for stream in streams if stream is not _NO_STREAM)
        return not running and (self._end is None or self._end.is_over())

    def synchronize(self) -> None:
        """Wait on the host until all launches have ended.

        Inside a capture nothing runs, so there is no wait.
        """
        if self._end is not None:
            self._end.synchronize()
        elif self._stream is not _NO_STREAM:
            self._wait_for(self._stream)
        elif self._captured is not _NO_STREAM and not self._device.is_capturing(self._captured):
            self._device.synchronize()

    def finish(self) -> None:
        """Wait on the host until no launch, unordered work or graph runs.

        A graph may be replayed on any stream, and some handles name a different stream in each thread. Then the whole
        device is synchronized.
        """
        beside = list(self._beside.values())
        if self.has_graphs or any(map(self._device.is_per_thread, beside)):
            self._device.synchronize()
            return
        self.synchronize()
        for stream in beside:
            self._wait_for(stream)

    def _wait_for(self, stream: Any) -> None:
        """Wait on the host for a stream, except for None, which has no pending kernels."""
        if stream is not None and not self._device.is_capturing(stream):
            self._device.synchronize(stream)
