"""Persistent sends and receives of device arrays.

Outside of graphs a start sends or receives one message as `Isend` and `Irecv` do: so MPI matches it with any other, and
what several requests have to do at once takes one launch. In a graph they use channels (`channels.py`): all that is
started together takes one launch, in which each meets the request that it met before.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from ..arrays.readers import places_of
from ..backends import Event
from ..requests.open_receives import let_receives_leave
from ..requests.work import Startable
from ..system.process import held
from ..team.streams import current_stream, is_of_current, stream_for
from .batch import Message, launch
from .pending import MessageWork
from .side import Side
from .typed import buffer_of

if TYPE_CHECKING:
    from .base import MessageBase

_IN_GRAPHS: list[PersistentMessage] = held([])  # freed while under way: the graph may use the array at any time


class _Group:
    """Persistent messages of one endpoint that start on one stream: those of the producer of the first, and maybe more.

    Attributes
    ----------
    key : hashable
        Equal for groups of one endpoint and stream.
    """

    def __init__(self, first: PersistentMessage) -> None:
        self.endpoint = endpoint = first.endpoint
        self.stream = stream_for(endpoint.device, (first.buffer,), endpoint.caller, first.of_current)
        self.key = endpoint.serial, getattr(self.stream, "ptr", 0)
        self.is_captured = endpoint.device.is_capturing(self.stream)
        self.batch: list[Message] = []
        self.captured: list[PersistentMessage] = []

    def launch(self) -> None:
        """Launch what has begun, or is captured; end the capture."""
        if not self.is_captured:
            launch(self.endpoint, "Startall", self.batch, self.stream)
            return
        order = self.endpoint.order
        stream = order.aside(self.stream)
        with order.following(stream):
            launch(self.endpoint, "Startall", self.batch, stream)
        event = order.mark(stream)
        for work in self.captured:
            work.capture_end(event, self.stream)


def start_several(works: Sequence[PersistentMessage]) -> None:
    """Start some in their order; those of one communicator and stream by one launch."""
    groups: dict[Hashable, _Group] = {}
    by_stream: dict[Hashable, _Group] = {}
    for work in works:
        if work.peer != MPI.PROC_NULL:
            group = groups.get(work.producer)
            if group is None:
                group = _Group(work)
                group = groups[work.producer] = by_stream.setdefault(group.key, group)
            if work.endpoint.loss is not None and not work.receives:
                work.endpoint.check_peer(work.name, work.peer)
            if group.is_captured:
                work.check_capture()
    try:
        for work in works:
            if work.peer != MPI.PROC_NULL:
                group = groups[work.producer]
                if group.is_captured:
                    work.capture(group.stream, group.batch)
                    group.captured.append(work)
                    continue
                work.begin(group.stream, None if len(works) == 1 else group.batch)
            work.active = True
    finally:  # the receivers have the envelopes of those that have begun
        for group in by_stream.values():
            if group.batch or group.captured:
                group.launch()


class PersistentMessage(MessageWork, Startable):
    """What a persistent request of a message stands for. It is active from its start to its end.

    Attributes
    ----------
    endpoint : Endpoint
    receives : bool
    peer, tag : int
    buffer : Buffer
        Unless the peer is MPI.PROC_NULL.
    producer : hashable
        Equal for those that start on one stream: of one endpoint, whose arrays name the same stream, or none.
    of_current : bool
        Whether the current stream may still be making the buffer.
    """

    starter = staticmethod(start_several)
    _event: Event | None = None  # at the end of what a graph has of it
    _began_on: Any = None  # the stream that this follows

    def __init__(self, comm: MessageBase, operation: str, side: Side, *, receives: bool) -> None:
        self.receives = receives
        self.active, self.comm, self.name = False, comm, operation
        self.owner = self.endpoint = comm.endpoint
        self.check_errors, self._state = self.endpoint.check, comm.state
        self.peer, self.tag = self._check(side)
        if self.peer != MPI.PROC_NULL:
            self.buffer = buffer_of(self.endpoint, f"{operation}: {side.name}", side.buf, writable=receives)
            self._plan = self.endpoint.plan(operation, self.buffer, self.peer, self.tag)
            self.places = places_of((self.buffer.owner,))
            self.of_current = is_of_current((self.buffer,))
            self.producer = self.endpoint.serial, self.buffer.stream, self.buffer.of_torch, self.of_current

    def _check(self, side: Side) -> tuple[int, int]:
        raise NotImplementedError

    def is_freed(self) -> bool:
        """Whether the communicator has been freed."""
        return not self._state.current or self.endpoint.comm is None

    @property
    def nbytes(self) -> int:
        """Of the buffer."""
        return self.buffer.nbytes if self.peer != MPI.PROC_NULL else 0

    # The start

    def begin(self, stream: Any, batch: list[Message] | None) -> None:
        """Begin one message; what has to be launched is added to a batch, or launched now if there is none."""
        raise NotImplementedError

    def check_capture(self) -> None:
        """Raise NotSupported if it has no channel."""
        raise NotImplementedError

    def capture(self, stream: Any, batch: list[Message]) -> None:
        """Add a message of the channel to a batch."""
        raise NotImplementedError

    def capture_end(self, event: Event, stream: Any) -> None:
        """Make it active with the event behind its part of a graph, which follows what `stream` had."""
        self.active, self._event, self._began_on = True, event, stream

    # The end

    def taken_back(self) -> tuple[Any, ...]:
        """Let the current stream wait for what a graph has of it; there is no message."""
        event, self._event = self._event, None
        if event is None:
            return super().taken_back()
        self._finish_captured(event, self.stream_of())
        return ()

    def stream_of(self, _: Any = None) -> Any:
        """Return the stream on which the user continues."""
        buffers = () if self.buffer.stream is None else (self.buffer,)
        return current_stream(self.endpoint.device, buffers, self.endpoint.caller)

    def _finish_captured(self, event: Event, stream: Any) -> None:
        let_receives_leave()
        event.order(stream)
        if self._began_on is not None and self._began_on != stream:
            event.order(self._began_on)

    def is_over(self) -> bool:
        return super().is_over() if self._event is None else self._event.is_over()

    def abandon(self) -> None:
        if self._event is not None:
            _IN_GRAPHS.append(self)
        super().abandon()
        if self.shown is not None:  # which MPI keeps, perhaps for ever
            self.shown.work = self.left()
