"""Persistent sends and receives of device arrays.

Outside graphs, a start sends or receives one message as `Isend` and `Irecv` do, and MPI matches it with any other send
or receive. In a graph, requests use channels (`channels.py`): each is matched with the request that it matched last. In
both cases, requests that are started together share one launch.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from mpi4py import MPI

from ...arrays.readers import places_of
from ...backends import Event
from ...derived.buffers import buffer_of, without_gaps
from ...failures.kernel_errors import FAILURE
from ...requests.open_receives import let_receives_leave
from ...requests.work import Startable
from ...system.process import held
from ...team.streams import current_stream, is_of_current
from ..base import MessageBase
from ..pending import MessageWork
from ..plan import plan_of
from .batch import Message
from .channels import Outlet
from .starts import end_lone_start, start_several

# Requests that were freed while active in a graph. They keep their arrays, because the graph may use them at any time.
_IN_GRAPHS: list[PersistentMessage] = held([])


class PersistentMessage(MessageWork, Startable):
    """The work behind a persistent request, active from its start to its end.

    Attributes
    ----------
    endpoint : Endpoint
    receives : bool
    peer, tag : int
    buffer : Buffer
        Not set if the peer is MPI.PROC_NULL.
    producer : hashable
        Equal for messages of one endpoint that start on the same stream, because their arrays name the same stream or
        none.
    of_current : bool
        Whether the current stream may still be writing the buffer.
    make : class
        Class of its messages, Outgoing or Incoming.
    channel : Outlet or None
        Channel that the envelopes of a send describe.
    needs_channel : bool
        Whether a start must call `make_channel` first.
    """

    starter = staticmethod(start_several)
    make: Any
    receives: bool
    producer: Hashable = None
    channel: Outlet | None = None
    needs_channel = False
    # Recorded after its part of a graph.
    _event: Event | None = None
    # The stream on which that part was started.
    _began_on: Any = None

    def __init__(self, comm: MessageBase, operation: str, buf: Any, rank: int, tag: int) -> None:
        self.active, self.comm, self.name = False, comm, operation
        self.owner = self.endpoint = endpoint = comm.endpoint
        self._state = comm.state
        check = endpoint.check_receive if self.receives else endpoint.check_send
        self.peer, self.tag = check(operation, rank, tag)
        if self.peer != MPI.PROC_NULL:
            buffer = buffer_of(buf, f"{operation}: buf", writable=self.receives, device=endpoint.device)
            self.buffer = without_gaps(buffer)
            self._plan = plan_of(endpoint, operation, self.buffer, self.peer, self.tag)
            self.places = places_of((self.buffer.owner,))
            self.of_current = is_of_current((self.buffer,))
            self.producer = endpoint.serial, self.buffer.stream, self.buffer.of_torch, self.of_current

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

    def start(self) -> None:
        """Start this message on the current stream, in fewer steps than `start_several`."""
        endpoint, device, caller = self.endpoint, self.endpoint.device, self.endpoint.caller
        is_plain = self.producer is not None and self.buffer.stream is None and not self.needs_channel
        if not is_plain or caller.stream is not None or caller.blocking == "host" or endpoint.comm_failure is not None:
            start_several((self,))
            return
        stream = device.current_stream()
        if device.is_capturing(stream):
            start_several((self,))
            return
        try:
            message = self.make()
            self.messages = (message,)
            message.begin(self.comm, endpoint, self._plan, None, stream, self.channel)
            if self.receives:
                self.status = message.status
                endpoint.context.receives.post(message)
            else:
                message.signal_ready()
                if not self._plan.is_free_at_once:
                    message.post()
            self.active = True
        except BaseException as error:
            end_lone_start(self, stream, error)
            raise

    def make_channel(self, stream: Any) -> None:
        """Create the channel that the envelopes of a send describe, if possible."""

    def check_capture(self) -> None:
        """Raise NotSupported if the request has no channel yet."""
        raise NotImplementedError

    def capture(self, stream: Any, batch: list[Message]) -> None:
        """Append a message of the channel to `batch`."""
        raise NotImplementedError

    def capture_end(self, event: Event, stream: Any) -> None:
        """Mark the request as active in a graph, from a start on `stream`.

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
        # MPI may keep `shown` forever, so `shown` must not refer to this object.
        if self.shown is not None:
            self.shown.work = self.left()
