"""Persistent sends and receives of device arrays.

Outside of graphs a start sends or receives one message as `Isend` and `Irecv` do, so MPI matches it with any other
message. In a graph requests use channels (`channels.py`): each is matched with the request it was matched with last.
In both cases requests that are started together share one launch.
"""

from __future__ import annotations

import operator
from collections.abc import Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from ..arrays.readers import places_of
from ..backends import Event
from ..memory.error_words import FAILURE
from ..requests.open_receives import let_receives_leave
from ..requests.work import Startable
from ..system.process import held
from ..team.streams import current_stream, is_of_current, stream_for
from .batch import Message, launch
from .channels import Outlet
from .endpoint import Endpoint
from .pending import MessageWork
from .side import Side
from .typed import buffer_of

if TYPE_CHECKING:
    from .base import MessageBase

_BATCH = operator.attrgetter("batch")
# Requests that were freed while active in a graph. They keep their arrays, which the graph may use at any time.
_IN_GRAPHS: list[PersistentMessage] = held([])


class _Group:
    """Persistent messages of one endpoint that are started on one stream."""

    endpoint: Endpoint
    stream: Any
    is_captured: bool
    batch: list[Message]
    captured: list[PersistentMessage]

    def launch(self) -> None:
        """Launch all messages; in a capture, mark each as active."""
        if not self.captured:
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
    """Start messages in their order, with one launch for each communicator and stream.

    After an interrupt all or none have been started.
    """
    groups = _groups_of(works)
    # Producers may share a group.
    every = dict.fromkeys(groups.values())
    try:
        for work in works:
            group = groups.get(work.producer)
            if group is not None and group.is_captured:
                work.capture(group.stream, group.batch)
                group.captured.append(work)
                continue
            if group is not None:
                if work.needs_channel:
                    work.make_channel(group.stream)
                message = work.make()
                work.messages = (message,)
                message.begin(work.comm, work.endpoint, work._plan, None, group.stream, work.channel)
                if work.receives:
                    work.status = message.status
                    message.postbox.receives.post(message)
                elif len(works) == 1:
                    message.signal_ready()
                else:
                    message.signal_ready_by(group.batch)
                if not (work.receives or message.plan.is_free_at_once):
                    message.post()
            work.active = True
    except BaseException as error:
        _end_start(works, groups, error)
        raise
    # Launch even after an exception: receivers already have the envelopes of messages that have begun.
    finally:
        try:
            for group in filter(_BATCH, every):
                group.launch()
        except BaseException as error:
            _launch_left(every, error)
            raise


def _end_start(works: Sequence[PersistentMessage], groups: dict[Hashable, _Group], error: BaseException) -> None:
    """Take back the message whose start has raised.

    After an interrupt start it, and the later ones. A graph gets no more messages.
    """
    for work in works:
        group = groups.get(work.producer)
        if work.active or (group is not None and group.is_captured):
            continue
        if isinstance(error, Exception):
            messages, work.messages = work.messages, ()
            for message in messages:
                message.leave()
            continue
        if group is not None:
            _start_again(work, group)
        work.active = True


def _start_again(work: PersistentMessage, group: _Group) -> None:
    """Start a message, which may have begun."""
    message = work.messages[0] if work.messages else None
    if message is None or not message.has_begun:
        if message is not None:
            message.leave()
        message = work.make()
        work.messages = (message,)
        message.begin(work.comm, work.endpoint, work._plan, None, group.stream, work.channel)
    if work.receives:
        work.status = message.status
        message.post()
    else:
        message.signal_ready()
        message.keep_lost()
        message.post()


def _launch_left(groups: Iterable[_Group], error: BaseException) -> None:
    """Launch the messages that an interrupted launch has left."""
    if not isinstance(error, Exception):
        for group in groups:
            if group.batch and not group.captured:
                group.launch()


def _groups_of(works: Sequence[PersistentMessage]) -> dict[Hashable, _Group]:
    """Return the group of each producer. Raise if a message cannot start.

    Messages to and from MPI.PROC_NULL have no group.
    """
    groups: dict[Hashable, _Group] = {}
    by_stream: dict[Hashable, _Group] = {}
    for work in works:
        if work.peer != MPI.PROC_NULL:
            endpoint, caller, device = work.endpoint, work.endpoint.caller, work.endpoint.device
            if endpoint.loss is not None and not work.receives:
                endpoint.check_peer(work.name, work.peer)
            if work.producer not in groups:
                if work.buffer.stream is None and caller.stream is None and caller.blocking != "host":
                    stream = device.current_stream()
                else:
                    stream = stream_for(device, (work.buffer,), caller, work.of_current)
                key = endpoint.serial, getattr(stream, "ptr", 0)
                if key not in by_stream:
                    group = by_stream[key] = _Group()
                    group.endpoint, group.stream, group.is_captured = endpoint, stream, device.is_capturing(stream)
                    group.batch, group.captured = [], []
                groups[work.producer] = by_stream[key]
            if groups[work.producer].is_captured:
                work.check_capture()
    return groups


class PersistentMessage(MessageWork, Startable):
    """The work of a persistent request. It is active from its start to its end.

    Attributes
    ----------
    endpoint : Endpoint
    receives : bool
    peer, tag : int
    buffer : Buffer
        Not set if the peer is MPI.PROC_NULL.
    producer : hashable
        Equal for messages that start on one stream: of one endpoint, with arrays that name the same stream or none.
    of_current : bool
        Whether the current stream may still be writing the buffer.
    make : class
        Class of its messages: Outgoing or Incoming.
    channel : Outlet or None
        Channel that the envelopes of a send describe.
    needs_channel : bool
        Whether a start must call `make_channel` first.
    """

    starter = staticmethod(start_several)
    make: Any
    producer: Hashable = None
    channel: Outlet | None = None
    needs_channel = False
    # Recorded after its part of a graph.
    _event: Event | None = None
    # The stream on which that part was started.
    _began_on: Any = None

    def __init__(self, comm: MessageBase, operation: str, side: Side, *, receives: bool) -> None:
        self.receives = receives
        self.active, self.comm, self.name = False, comm, operation
        self.owner = self.endpoint = comm.endpoint
        self._state = comm.state
        self.peer, self.tag = self._check(side)
        if self.peer != MPI.PROC_NULL:
            self.buffer = buffer_of(self.endpoint, f"{operation}: {side.name}", side.buf, writable=receives)
            self._plan = self.endpoint.plan(operation, self.buffer, self.peer, self.tag)
            self.places = places_of((self.buffer.owner,))
            self.of_current = is_of_current((self.buffer,))
            self.producer = self.endpoint.serial, self.buffer.stream, self.buffer.of_torch, self.of_current

    def _check(self, side: Side) -> tuple[int, int]:
        raise NotImplementedError

    def check_owner(self) -> None:
        """Raise if the communicator has been freed or kernels have recorded an error."""
        endpoint = self.endpoint
        if not self._state.current or endpoint.comm is None:
            raise self.freed()
        if endpoint.failure or endpoint.watcher.failure or endpoint.watch.array[FAILURE]:
            endpoint.check()

    @property
    def nbytes(self) -> int:
        """Size of the buffer."""
        return self.buffer.nbytes if self.peer != MPI.PROC_NULL else 0

    # The start

    def make_channel(self, stream: Any) -> None:
        """Create the channel that the envelopes of a send describe, if possible."""

    def check_capture(self) -> None:
        """Raise NotSupported if it has no channel yet."""
        raise NotImplementedError

    def capture(self, stream: Any, batch: list[Message]) -> None:
        """Append a message of the channel to `batch`."""
        raise NotImplementedError

    def capture_end(self, event: Event, stream: Any) -> None:
        """Mark it as active in a graph that was started on `stream`.

        `event` is recorded after its part of the graph.
        """
        self.active, self._event, self._began_on = True, event, stream

    # The end

    def taken_back(self) -> tuple[Any, ...]:
        """Return the abandoned messages. In a graph, make the current stream wait instead."""
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
        # MPI may keep `shown` for ever, so `shown` must not keep this.
        if self.shown is not None:
            self.shown.work = self.left()
