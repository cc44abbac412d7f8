"""The first half of a receive: MPI matches the message and brings its envelope."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from mpi4py import MPI

from ..errors import MPIError
from ..requests.open_receives import LOCK
from .endpoint import Endpoint
from .envelope import LETTER, LETTER_NBYTES, Envelope, unpack
from .probe import ProbedMessage
from .scratch import PINNED_NBYTES
from .side import Plan
from .typed import TypedBuffer


class Arrival:
    """A message that is to come, or has come, for a device array.

    Attributes
    ----------
    status : MPI.Status
        Of the message, once it has arrived.
    clock : int
        Of the message, once it has arrived; 0 of a host array.
    has_arrived : bool
        Whether its message has arrived.
    envelope : Envelope or None
        Of the message, once it has arrived; None of a host array's.
    """

    clock = _entry = 0
    has_arrived = _is_wild = _is_cancelling = False
    envelope: Envelope | None = None
    _nbytes = 0  # of the message
    _error: Exception | None = None
    _transfer: Callable[[memoryview], MPI.Request] | None = None

    def __init__(
        self, endpoint: Endpoint, plan: Plan, owner: Any, stream: Any, probed: ProbedMessage | None = None
    ) -> None:
        self.endpoint, self.postbox, self.operation = endpoint, endpoint.postbox, plan.operation
        self.buffer, self.stream = plan.buffer, stream
        self.owner = owner[0] if type(owner) is list else owner  # the program may take the array out of its list
        self._kernel_stream = stream
        self._plan, self._capacity_nbytes = plan, plan.nbytes
        self._probed = probed  # the message that a probe has found: MPI has another source and tag for it
        self._scratch = self.postbox.scratch
        self.status = MPI.Status()

    def start(self, transfer: Callable[[memoryview], MPI.Request]) -> None:
        """Start to receive the message: `transfer` starts MPI's receive into host memory."""
        plan, endpoint = self._plan, self.endpoint
        if isinstance(self.buffer, TypedBuffer):
            self.buffer.allocate(endpoint.device, self.stream)
        if plan.nbytes >= PINNED_NBYTES and endpoint.peers.is_far(plan.rank):
            self._scratch = self.postbox.pinned_scratch
        self._is_wild = plan.rank == MPI.ANY_SOURCE or plan.tag == MPI.ANY_TAG
        if endpoint.ring is not None:
            self._entry = endpoint.ring.add_packed(0, plan.facts)
        self._message = self._scratch.take(plan.room_nbytes)
        self._transfer, self._request = transfer, transfer(self._message)

    def cancel(self) -> None:
        """Take the receive back, unless MPI has matched it; it arrives in both cases, and the status says which."""
        with LOCK:
            if not self.has_arrived and self._request:
                self._is_cancelling = True
                self._request.Cancel()

    def poll(self) -> bool:
        """Look whether the message has arrived; True once."""
        try:
            if not (self._request.Test(self.status) and self._read()):
                return False
        except Exception as error:  # belongs to the call that waits for this receive
            self._refuse(error)
        self.has_arrived = True
        return True

    def _read(self) -> bool:
        """Read what has arrived; False if it is no message of the program's, whose message is still to come."""
        if self._is_cancelling and self.status.Is_cancelled():
            self._is_wild = False  # it has matched nothing
            self.status.Set_elements(MPI.BYTE, 0)
            return True
        received_nbytes = self.status.Get_elements(MPI.BYTE)
        if self._probed is not None:
            self._probed.set_origin(self.status)
        envelope = self.envelope = unpack(self._message, received_nbytes)
        self._nbytes = received_nbytes  # of a host array, if there is no envelope
        if envelope is not None and envelope.transport == LETTER:
            self._take_letter()
            return False
        if envelope is not None:
            self._nbytes, self.clock = envelope.nbytes, envelope.clock
            self.postbox.clock.observe(envelope.clock)
            if envelope.sender.node != self.postbox.sender.node:
                self.endpoint.peers.far.add(self.status.source)
            if envelope.answer and self.postbox.opened.bounce_address(envelope.sender) is not None:
                self.postbox.readers.answer(envelope.sender, envelope.answer - 1)
        self.status.Set_elements(MPI.BYTE, min(self._nbytes, self._capacity_nbytes))
        if self._nbytes > self._capacity_nbytes:
            self._error = self._truncated(f"{self._nbytes}")
        return True

    def _take_letter(self) -> None:
        """Hand over the letter that has come to a receive of any tag, and receive the next message instead."""
        assert self._transfer is not None
        self.endpoint.partitioned.letters.deliver(self.status.source, bytes(self._message[:LETTER_NBYTES]))
        self.envelope, self._request = None, self._transfer(self._message)

    def _truncated(self, sent: str) -> MPIError:
        source, tag = self.status.source, self.status.tag
        text = f"rank {source} sent {sent} bytes with tag {tag}, the buffer has room for {self._capacity_nbytes}"
        return MPIError(MPI.ERR_TRUNCATE, f"{self.operation}: {text}; receive into a larger array")

    def _refuse(self, error: Exception) -> None:
        """Keep MPI's own error, or what it is about; only a message with its data in it can be too long for MPI."""
        if not isinstance(error, MPI.Exception):
            self._error = error
        elif error.Get_error_class() == MPI.ERR_TRUNCATE:
            self._error = self._truncated("more")
        else:
            self._error = self.endpoint.explained(error, self.operation)
        if self._request:  # a receive from any rank, which MPI has not ended: some rank has failed
            self._request.Cancel()
            with suppress(MPI.Exception):
                self._request.Wait()
