"""The work of requests of `Send_init`, `Ssend_init` and `Rsend_init`."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from ...errors import NotSupported
from ..send import Outgoing
from ..side import Side
from ..typed import TypedBuffer
from .base import PersistentMessage
from .batch import Message
from .channels import outlet_of, unmatched

if TYPE_CHECKING:
    from ..base import MessageBase

# Time to wait for the receiver's answer. The receiver sends it when it completes its request.
LONGEST_WAIT_S = 5.0


class PersistentSend(PersistentMessage):
    """The work of a request of `Send_init`, `Ssend_init` or `Rsend_init`."""

    make, needs_channel = Outgoing, True

    def __init__(self, comm: MessageBase, operation: str, side: Side) -> None:
        super().__init__(comm, operation, side, receives=False)

    def _check(self, side: Side) -> tuple[int, int]:
        return self.endpoint.check_send(self.name, side.rank, side.tag)

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
