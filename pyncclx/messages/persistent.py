"""Persistent sends and receives of device arrays.

Outside of graphs a start sends or receives one message as `Isend` and `Irecv` do: so MPI matches it with any other, and
what several requests have to do at once takes one launch. In a graph they use channels (`channels.py`): all that is
started together takes one launch, in which each meets the request that it met before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from ..backends import Event
from ..errors import MPIError
from ..requests.open_receives import OpenReceive, let_receives_leave
from ..requests.status import fill_empty
from ..system.process import held
from ..team.streams import current_stream
from .batch import Batch
from .call_end import drain_if_blocking
from .endpoint import Endpoint
from .receive import Incoming
from .send import Outgoing
from .side import Side
from .startable import Startable
from .typed import TypedBuffer, buffer_of

if TYPE_CHECKING:
    from .base import MessageBase

_ACTIVE: set[PersistentMessage] = held(set())  # keeps arrays that kernels use, also if the program drops the request


class PersistentMessage(Startable):
    """What a persistent request of a message stands for. It is active from its start to `finish`.

    Attributes
    ----------
    active : bool
    receive : OpenReceive or None
        The receive that is under way.
    starter : callable
        Starts several.
    """

    receive: OpenReceive | None = None
    _message: Outgoing | Incoming | None = None  # under way, outside of graphs
    _event: Event | None = None  # at the end of what a graph has of it

    def __init__(self, comm: MessageBase, operation: str, side: Side, *, writable: bool) -> None:
        super().__init__(comm, operation)
        self.peer, self.tag = self._check(side)
        self._began_on: Any = None
        if self.peer != MPI.PROC_NULL:
            self.buffer = buffer_of(self.endpoint, f"{operation}: {side.name}", side.buf, writable=writable)
            self._plan = self.endpoint.plan(operation, self.buffer, self.peer, self.tag)
            self._remember_address()

    def _check(self, side: Side) -> tuple[int, int]:
        raise NotImplementedError

    @property
    def nbytes(self) -> int:
        """Of the buffer."""
        return self.buffer.nbytes if self.peer != MPI.PROC_NULL else 0

    # The start

    @property
    def starter(self) -> Any:
        return start_several

    def start(self) -> None:
        """Start it after what the current stream has."""
        start_several([self])

    def begin(self, stream: Any, batch: Batch | None) -> None:
        """Begin one message; what has to be launched is added to a batch, or launched now if there is none."""
        raise NotImplementedError

    def check_capture(self) -> None:
        """Raise NotSupported if it has no channel."""
        raise NotImplementedError

    def capture(self, stream: Any, batch: Batch) -> None:
        """Add a message of the channel to a batch."""
        raise NotImplementedError

    def activate(self, event: Event | None = None, stream: Any = None) -> None:
        """Make it active; with the event behind its part of a graph, which follows what `stream` had."""
        self.active, self._event, self._began_on = True, event, stream
        _ACTIVE.add(self)

    # The end

    def finish(self) -> None:
        """Make the current stream wait; raise what went wrong."""
        active, self.active = self.active, False
        _ACTIVE.discard(self)
        message, self._message, self.receive = self._message, None, None
        event, self._event = self._event, None
        if not active or self.peer == MPI.PROC_NULL:
            return
        buffers = () if self.buffer.stream is None else (self.buffer,)
        stream = current_stream(self.endpoint.device, buffers, self.endpoint.caller)
        if event is not None:
            self._finish_captured(event, stream)
        elif message is not None:
            message.finish(stream)
            if isinstance(self.buffer, TypedBuffer) and stream is not message.stream:
                self.endpoint.device.order(stream, message.stream)  # which uses the packed copy again
            self._met(message)
            drain_if_blocking(self.endpoint, message)

    def _finish_captured(self, event: Event, stream: Any) -> None:
        let_receives_leave()
        event.order(stream)
        if self._began_on is not None and self._began_on != stream:
            event.order(self._began_on)

    def _met(self, message: Any) -> None:
        """A message is over."""

    def is_over(self) -> bool:
        """Whether `finish` would return at once."""
        if not self.active or self.peer == MPI.PROC_NULL:
            return True
        if self._event is not None:
            return self._event.is_over()
        self.endpoint.check()
        self.endpoint.postbox.receives.launch_arrived()
        return self._message is None or self._message.is_over()

    def fill(self, status: MPI.Status) -> None:
        """Set a status to that of the last message."""
        fill_empty(status)

    def cancel(self) -> None:
        """Cancel a receive that nothing has matched; a send goes on."""
        if isinstance(self._message, Incoming):
            self._message.cancel()

    def abandon(self) -> None:
        """Let what is under way go on without the request; a graph may use the array at any time."""
        # Another thread may finish it, by a copy of the handle: only one of the two gets the message.
        message, self._message = self._message, None
        if message is not None:
            message.abandon()
        if self._event is None:
            _ACTIVE.discard(self)

    def drop(self) -> None:
        """Do so soon; a destructor calls this."""
        self.endpoint.postbox.receives.unsent.dropped.append(self)


class _Group:
    """Works of one endpoint that start on one stream; `is_alone`: there is one, and no other group."""

    def __init__(self, endpoint: Endpoint, stream: Any, *, is_alone: bool) -> None:
        self._endpoint, self.stream, self._is_alone = endpoint, stream, is_alone
        self.is_captured = endpoint.device.is_capturing(stream)
        self.works: list[PersistentMessage] = []
        self.batch = Batch(endpoint, "Startall")

    def start(self, work: PersistentMessage) -> None:
        """Begin one, in the order of the call."""
        if self.is_captured:
            work.capture(self.stream, self.batch)
            self.works.append(work)
        else:
            work.begin(self.stream, None if self._is_alone else self.batch)
            work.activate()

    def launch(self) -> None:
        """Launch what those that have begun need."""
        if not self.is_captured:
            if len(self.batch):
                self.batch.launch(self.stream)
            return
        order = self._endpoint.order
        stream = order.aside(self.stream)
        with order.following(stream):
            self.batch.launch(stream)
        event = order.mark(stream)
        for work in self.works:
            work.activate(event, self.stream)


def start_several(works: Sequence[PersistentMessage]) -> None:
    """Start some in their order; those of one communicator and stream by one launch."""
    if len(set(works)) < len(works):
        raise MPIError(MPI.ERR_REQUEST, "Startall: a request is there twice")
    for work in works:
        work.check()
    groups: dict[tuple[int, int], _Group] = {}
    placed = [(work, _group_of(work, groups, is_alone=len(works) == 1)) for work in works]
    for work, group in placed:
        if group is not None and group.is_captured:
            work.check_capture()
    try:
        for work, group in placed:
            if group is None:
                work.activate()
            else:
                group.start(work)
    finally:  # the receivers have the envelopes of those that have begun
        for group in groups.values():
            group.launch()


def _group_of(
    work: PersistentMessage, groups: dict[tuple[int, int], _Group], *, is_alone: bool
) -> _Group | None:
    """Return the group of a work; None for MPI.PROC_NULL."""
    if work.peer == MPI.PROC_NULL:
        return None
    stream = work.stream()
    key = work.endpoint.serial, getattr(stream, "ptr", 0)
    if key not in groups:
        groups[key] = _Group(work.endpoint, stream, is_alone=is_alone)
    return groups[key]
