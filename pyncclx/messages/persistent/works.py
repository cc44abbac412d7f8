"""The work of requests of `Send_init`, `Ssend_init`, `Rsend_init` and `Recv_init`."""

from __future__ import annotations

import os
import time
from typing import Any

from mpi4py import MPI

from ...backends import Event
from ...derived.buffers import TypedBuffer
from ...errors import NotSupported
from ...requests.status import status_of_no_source
from ..base import MessageBase
from ..envelope import channel_of
from ..receive import Incoming
from ..send import Outgoing
from .base import PersistentMessage
from .batch import Message
from .channels import Inlet, inlet_of, outlet_of, unmatched

# Seconds to wait for the receiver's answer, which the receiver sends when it completes its request.
LONGEST_WAIT_S = 5.0


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
