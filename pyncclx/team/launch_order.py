"""The order of a communicator's launches: each follows the one before, whatever their streams are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..backends import Device, Event, Function, Repeated
from ..requests.open_receives import OPEN_RECEIVES, let_receives_leave
from .kept import Kept
from .used_streams import UsedStreams

_NO_STREAM, _ABSENT = object(), object()


class LaunchOrder:
    """Launches the kernels of one communicator on this rank, one after the other.

    What a graph captures does not run now, so it is no launch that others wait for; the owner of the graph orders its
    replays. Inside one capture, captured launches follow each other. A call beside the capture of the very stream that
    had the last launch does not wait for that: CUDA records no event there until the capture ends.

    Nonblocking and persistent calls are launched aside: on a stream of the communicator's own, so that what the caller
    enqueues next does not wait for them. Several such streams run at once as far as the hardware does: CUDA maps all
    streams of a process to a few queues (CUDA_DEVICE_MAX_CONNECTIONS). In one queue a kernel
    waits for the one before it. So where more streams than queues have collectives under way that the ranks began in
    different orders, the ranks may wait for each other until PYNCCLX_TIMEOUT; and all their kernels must fit the GPU
    together.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self.kept = Kept()
        self._ready: Any = _NO_STREAM  # the next launch on it needs nothing before
        self._stream: Any = _NO_STREAM  # of the last launch, unless `_end` is its end
        self._beside = UsedStreams(device)  # of work that is in no order with launches
        self._captured_beside = False  # whether a graph has such work
        self._end: Event | None = None  # of the last launch, if its stream is another one in each thread
        self._captured: Any = _NO_STREAM  # of the last captured launch
        self._is_captured = False  # what `follow` was called for last
        self._may_be_captured = False  # a launch on a stream that was ready
        self._asides: dict[bool, Any] = {}  # streams for launches aside, by whether they are captured

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

    def repeat_aside(self, repeated: Repeated, stream: Any) -> Any:
        """Launch aside what was prepared before; return the stream that it is on. See `aside`."""
        aside = self._asides.get(False, _ABSENT)
        if aside is self._ready and not OPEN_RECEIVES and repeated.launch_aside(stream, aside):
            return aside
        aside = self.aside(stream)
        self.repeat(repeated, aside)
        return aside

    @contextmanager
    def following(self, stream: Any) -> Iterator[None]:
        """Order what the block enqueues on `stream` behind the last launch here, and before no receive that is open."""
        self.follow(stream)
        yield
        self.extend(stream)

    def follow(self, stream: Any) -> None:
        """Order what is enqueued on `stream` next as `following` does; `extend` comes behind it."""
        if stream is self._ready and not OPEN_RECEIVES:
            return
        let_receives_leave()
        self._is_captured = self._device.is_capturing(stream)
        if self._is_captured:
            self._follow_captured(stream)
            return
        if self._end is not None:
            self._end.order(stream)
        elif self._stream is not _NO_STREAM and self._stream != stream:
            self._device.order(self._stream, stream)
        per_thread = self._device.is_per_thread(stream)
        self._ready, self._stream = (_NO_STREAM, _NO_STREAM) if per_thread else (stream, stream)
        self._end = self._device.event() if per_thread else None
        self._may_be_captured |= self._device.can_be_captured(stream) and stream is not self._asides.get(False)

    def _follow_captured(self, stream: Any) -> None:
        """Do so inside a capture; the last launch on a stream that has since joined the capture may be part of it."""
        for before in (self._stream, self._captured):
            if before is not _NO_STREAM and before != stream:
                self._device.order(before, stream)
        self._ready, self._captured = _NO_STREAM, stream

    def aside(self, stream: Any) -> Any:
        """Return the stream for a launch aside, which comes after what `stream` has now.

        While `stream` is being captured, it is one that joins the capture; `stream` itself if that is impossible, since
        two captures go on at once.
        """
        capturing = self._device.is_capturing(stream)
        if capturing not in self._asides:
            self._asides[capturing] = self._device.new_stream()
        aside = self._asides[capturing]
        if capturing:
            return aside if self._device.fork(stream, aside) else stream
        self._device.order_eager(stream, aside)
        if stream is self._stream:  # so it also comes after the last launch
            self._ready = self._stream = aside
        return aside

    def extend(self, stream: Any) -> None:
        """Count what has been enqueued on `stream` since the last launch, copies for example, as part of it."""
        if self._end is not None and not self._is_captured:
            self._end.record(stream)

    def mark(self, stream: Any) -> Event:
        """Return an event at the end of what `stream` has."""
        event = self._device.event()
        event.record(stream)
        return event

    @property
    def is_unused(self) -> bool:
        """Whether nothing has been launched."""
        return self._end is None and self._stream is _NO_STREAM and self._captured is _NO_STREAM

    @property
    def has_graphs(self) -> bool:
        """Whether graphs have captured something, so that it may run at any time."""
        return self._captured_beside or self._captured is not _NO_STREAM

    def is_busy(self) -> bool:
        """Return whether something launched is not over, or may be in a replay; by any thread."""
        streams = [self._stream, *list(self._beside.values()), *self._asides.values()]
        return self.has_graphs or not self._are_over(streams)

    def note(self, stream: Any) -> None:
        """Note that work which is in no order with launches, such as a wait for a signal, is on a stream next."""
        if stream is not None and self._device.is_capturing(stream):
            self._captured_beside = True
        elif stream is not self._beside.last:
            self._beside.add(stream)

    def is_over(self) -> bool:
        """Return whether what was launched is over, to the thread that launches; in graphs it never is.

        A launch costs too much to ask each time whether its stream is being captured: where the program could have done
        so, it never is either.
        """
        if self._may_be_captured:
            return False
        # On None a call returns when its kernel has ended: what runs there is another thread's.
        streams = [stream for stream in (self._stream, *self._asides.values()) if stream is not None]
        return not self.has_graphs and self._are_over(streams)

    def _are_over(self, streams: list[Any]) -> bool:
        running = any(not self._device.is_idle(stream) for stream in streams if stream is not _NO_STREAM)
        return not running and (self._end is None or self._end.is_over())

    def synchronize(self) -> None:
        """Wait on the host until all launches are over; inside a capture nothing runs, and there is no wait."""
        if self._end is not None:
            self._end.synchronize()
        elif self._stream is not _NO_STREAM:
            self._wait_for(self._stream)
        elif self._captured is not _NO_STREAM and not self._device.is_capturing(self._captured):
            self._device.synchronize()

    def finish(self) -> None:
        """Wait on the host until nothing of the communicator runs: launches, what is beside them, and graphs.

        A graph may be replayed on any stream, and some handles name another stream in each thread: then for the device.
        """
        beside = list(self._beside.values())
        if self.has_graphs or any(map(self._device.is_per_thread, beside)):
            self._device.synchronize()
            return
        self.synchronize()
        for stream in beside:
            self._wait_for(stream)

    def _wait_for(self, stream: Any) -> None:
        """Wait for a stream; on None a call returns when its kernel has ended."""
        if stream is not None and not self._device.is_capturing(stream):
            self._device.synchronize(stream)
