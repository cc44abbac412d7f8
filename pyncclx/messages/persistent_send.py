"""What the requests of `Send_init`, `Ssend_init` and `Rsend_init` stand for."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from ..errors import NotSupported
from .batch import Message
from .channels import Outlet, outlet_of, unmatched
from .persistent import PersistentMessage
from .send import Outgoing
from .side import Side
from .typed import TypedBuffer

if TYPE_CHECKING:
    from .base import MessageBase

LONGEST_WAIT_S = 5.0  # for the receiver's answer; it comes when that has waited for its request


class PersistentSend(PersistentMessage):
    """Of `Send_init`, `Ssend_init` and `Rsend_init`."""

    _outlet: Outlet | None = None

    def __init__(self, comm: MessageBase, operation: str, side: Side) -> None:
        super().__init__(comm, operation, side, receives=False)

    def _check(self, side: Side) -> tuple[int, int]:
        return self.endpoint.check_send(self.name, side.rank, side.tag)

    def begin(self, stream: Any, batch: list[Message] | None) -> None:
        if self._outlet is None:
            if isinstance(self.buffer, TypedBuffer):
                self.buffer.allocate(self.endpoint.device, stream)
            self._outlet = outlet_of(self.endpoint, self.buffer.address, self.buffer.nbytes)
        message = Outgoing(self.comm, self.endpoint, self._plan, None, stream, self._outlet)
        self.messages = (message,)
        if batch is None:
            message.signal_ready()
        else:
            message.signal_ready_by(batch)
        if not message.plan.is_free_at_once:
            message.post()

    def check_capture(self) -> None:
        if self._outlet is None:
            how = "start it once before, and wait for it; a long message's memory must be shareable"
            raise NotSupported(f"{self.name}: a graph cannot hold the first start, for MPI matches that: {how}")
        deadline = time.monotonic() + LONGEST_WAIT_S
        while not self._outlet.is_answered:  # the receiver does so when its request is over
            if time.monotonic() > deadline:
                why = f"rank {self.peer} has received it by no persistent request, or is on another node"
                raise unmatched(self.name, why)
            os.sched_yield()

    def capture(self, stream: Any, batch: list[Message]) -> None:
        assert self._outlet is not None
        if isinstance(self.buffer, TypedBuffer):
            self.buffer.pack(self.endpoint, stream)
        self._outlet.send(batch, self.buffer.address, self.peer, self.tag)
