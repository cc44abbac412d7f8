"""Persistent sends and receives of device arrays.

Outside graphs, a start sends or receives one message as `Isend` and `Irecv` do, and MPI matches it with any other send
or receive. In a graph, requests use channels (`channels.py`): each is matched with the request that it matched last. In
both cases, requests that start together share one launch.
"""

from __future__ import annotations

import os
import time
from collections.abc import Hashable
from typing import Any

from mpi4py import MPI

from ...arrays.readers import places_of
from ...backends import Event
from ...derived.buffers import TypedBuffer, buffer_of, without_gaps
from ...errors import NotSupported
from ...failures.kernel_errors import FAILURE
from ...requests.open_receives import let_receives_leave
from ...requests.status import status_of_no_source
from ...requests.work import Startable
from ...system.process import held
from ...team.streams import current_stream, is_of_current
from ..base import MessageBase
from ..envelope import channel_of
from ..pending import MessageWork
from ..plan import plan_of
from ..receive import Incoming
from ..send import Outgoing
from .channels import Inlet, Outlet, inlet_of, outlet_of, unmatched
from .starts import Message, end_lone_start, start_several

# Requests that were freed while active in a graph. They keep their arrays, because the graph may use them at any time.
_IN_GRAPHS: list[PersistentMessage] = held([])
# Seconds to wait for the receiver's answer, which the receiver sends when it completes its request.
LONGEST_WAIT_S = 5.0


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
        if endpoint.failure or endpoint.monitor.failure or endpoint.watch.array[FAILURE]:
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

        `event` is recorded after the request's part of the graph.
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
        """Return the program's stream, which is to wait for the message."""
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


class PersistentSend(PersistentMessage):
    """The work of a request of `Send_init`, `Ssend_init` or `Rsend_init`."""

    make, receives, needs_channel = Outgoing, False, True

    def make_channel(self, stream: Any) -> None:
        if isinstance(self.buffer, TypedBuffer):
            self.buffer.allocate(self.endpoint.device, stream)
        self.channel = outlet_of(self.endpoint, self.buffer.address, self.buffer.nbytes)
        self.needs_channel = self.channel is None

    def check_capture(self) -> None:
        if self.channel is None:
            how = "start it once before, and wait for it; a long message's memory must be shareable"
            raise NotSupported(f"{self.name}: a graph cannot hold the first start, for MPI matches that: {how}")
        deadline = time.monotonic() + LONGEST_WAIT_S
        while not self.channel.is_answered:
            if time.monotonic() > deadline:
                why = f"rank {self.peer} has received it by no persistent request, or is on another node"
                raise unmatched(self.name, why)
            os.sched_yield()

    def capture(self, stream: Any, batch: list[Message]) -> None:
        assert self.channel is not None
        if isinstance(self.buffer, TypedBuffer):
            self.buffer.pack(self.endpoint, stream)
        self.channel.send(batch, self.buffer.address, self.peer, self.tag)


class PersistentReceive(PersistentMessage):
    """The work of a request of `Recv_init`."""

    make, receives = Incoming, True
    status: MPI.Status
    # The channel of the request that this request matched last.
    _inlet: Inlet | None = None

    def __init__(self, comm: MessageBase, operation: str, buf: Any, rank: int, tag: int) -> None:
        super().__init__(comm, operation, buf, rank, tag)
        self.status = status_of_no_source() if self.peer == MPI.PROC_NULL else MPI.Status()

    def met(self, message: Incoming) -> None:
        """Cache the channel of a received message, for captures."""
        envelope, self._inlet = message.envelope, None
        if envelope is not None and envelope.channel and envelope.nbytes <= self.buffer.nbytes:
            self._inlet = inlet_of(self.endpoint, envelope, message.status.source)
        self.met_channel = None if envelope is None or self._inlet is None else channel_of(envelope)

    def check_capture(self) -> None:
        if self.peer == MPI.ANY_SOURCE:
            raise NotSupported(f"{self.name}: a graph cannot hold MPI.ANY_SOURCE; name the rank")
        if self._inlet is None:
            how = "start both once before, and wait for them; messages between nodes cannot be in a graph, "
            how += "neighbourhood collectives (Ineighbor_alltoallw) with NCCL can"
            raise unmatched(self.name, f"this one has met none that can: {how}")

    def capture(self, stream: Any, batch: list[Message]) -> None:
        assert self._inlet is not None
        if isinstance(self.buffer, TypedBuffer):
            self.buffer.allocate(self.endpoint.device, stream)
        # The status keeps the values of the last message that MPI matched.
        self._inlet.receive(batch, self.buffer.address, self.status.tag)

    def _finish_captured(self, event: Event, stream: Any) -> None:
        super()._finish_captured(event, stream)
        if isinstance(self.buffer, TypedBuffer) and self._inlet is not None:
            self.buffer.unpack(self.endpoint, stream, self._inlet.nbytes)
