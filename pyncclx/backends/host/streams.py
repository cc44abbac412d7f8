"""Streams of the host device: each is a queue with a thread that serves it.

The current stream is None, and synchronous: work launched on it has ended when the call returns. Work launched on
another stream runs beside the program, in the order of that stream. PYNCCLX_TIMEOUT bounds the waits of kernels, and
thereby waits for a stream.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from ...system.threads import Worker

_Work = Callable[[], object]
_ANY = object()


class Stream(Worker):
    """Emulated CUDA stream: a thread that runs the enqueued work in order.

    Attributes
    ----------
    ptr : int
        Handle of the stream. No other stream of this process has the same handle.
    """

    def __init__(self) -> None:
        super().__init__("pyncclx stream")
        self.ptr = id(self)
        self._error: Exception | None = None

    def enqueue(self, work: _Work, parameters: bytes = b"") -> None:
        """Enqueue work for the thread; raise an exception of earlier work.

        `parameters` are those of a kernel that the work launches.
        """
        self.check()
        self.give(partial(self._do, work), parameters)

    def _do(self, work: _Work) -> None:
        try:
            work()
        except Exception as error:
            self._error = self._error or error

    def check(self) -> None:
        """Raise the exception of earlier work, once."""
        error, self._error = self._error, None
        if error is not None:
            raise error


class Event:
    """Event on a stream. On stream None, or before it is recorded, it counts as over."""

    def __init__(self) -> None:
        self._stream: Stream | None = None
        self._number = 0

    def record(self, stream: Stream | None) -> None:
        """Record the event on a stream."""
        self._stream, self._number = stream, stream.given if stream else 0

    record_eager = record

    def is_over(self) -> bool:
        """Return whether the work before the event has finished; if not, yield the CPU."""
        stream = self._stream
        if stream is None or stream.has_done(self._number):
            return True
        if stream.is_alone:
            stream.wait(self._number)
            return True
        time.sleep(0)
        return False

    def order(self, then: Stream | None) -> None:
        """Make `then` wait for the event; on stream None, the caller waits."""
        if then is None:
            self.synchronize()
        elif self._stream is not None and self._stream is not then:
            then.enqueue(partial(self._stream.wait, self._number))

    order_eager = order

    def synchronize(self) -> None:
        """Wait for the work before the event, and raise its exception."""
        if self._stream is not None:
            self._stream.wait(self._number)
            self._stream.check()


class HostStreams:
    """`backends.device.Streams` by threads."""

    def __init__(self) -> None:
        self._streams: weakref.WeakSet[Stream] = weakref.WeakSet()
        self._of_thread = threading.local()
        self.running = 0  # launches on None that have not returned

    def current_stream(self) -> None:
        return None

    def can_be_captured(self, stream: object) -> bool:
        return False

    def private_stream(self) -> Stream:
        stream: Stream | None = getattr(self._of_thread, "stream", None)
        if stream is None:
            stream = self._of_thread.stream = self.new_stream()
        return stream

    def current_and_private(self) -> tuple[None, None]:
        # The current stream of the host device waits for no other.
        return None, None

    def named_stream(self, value: Any) -> Stream:
        if not isinstance(value, Stream):
            raise TypeError(f"stream is {value!r}; the host device takes what `new_stream` returns, or None")
        return value

    def external_stream(self, pointer: int) -> None:
        return None

    def new_stream(self) -> Stream:
        stream = Stream()
        self._streams.add(stream)
        return stream

    def synchronize(self, stream: Any = _ANY) -> None:
        for each in list(self._streams) if stream is _ANY else [stream]:
            self._end_of(each).synchronize()

    def is_idle(self, stream: Stream | None) -> bool:
        return not self.running if stream is None else stream.has_done(stream.given)

    def order(self, first: Stream | None, then: Stream | None) -> None:
        self._end_of(first).order(then)

    order_eager = order

    def fork(self, stream: Stream | None, side: Stream | None) -> bool:
        self.order(stream, side)
        return True

    def call_between(self, stream: Stream | None, function: _Work) -> None:
        if stream is None:
            function()
        else:
            stream.enqueue(function)

    def event(self) -> Event:
        return Event()

    def _end_of(self, stream: Stream | None) -> Event:
        event = Event()
        event.record(stream)
        return event

    def can_leave(self, stream: object) -> bool:
        return True

    def is_capturing(self, stream: object) -> bool:
        return False

    def is_per_thread(self, stream: object) -> bool:
        return False

    def attached(self) -> AbstractContextManager[None]:
        return nullcontext()
