"""First half of a receive: MPI matches the message and receives its envelope."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from mpi4py import MPI

from mpi_bootstrap.own_errors import own_error

from ..derived.buffers import TypedBuffer
from ..errors import MPIError
from ..requests.open_receives import LOCK, OpenReceive
from .base import MessageBase
from .endpoint import Endpoint
from .envelope import Envelope, received_spec, unpack
from .memory.scratch import KEPT_NBYTES, PINNED_NBYTES
from .plan import Plan
from .probe import HOLDING, ProbedMessage


class Arrival(OpenReceive):
    """A receive into a device array, up to the arrival of its message.

    Attributes
    ----------
    status : MPI.Status
        Status of the message, set when it arrives.
    envelope : Envelope or None
        Envelope of the message, set when it arrives; None if a host array was sent.
    """

    _entry = 0
    _is_cancelling = False
    envelope: Envelope | None = None
    _message_nbytes: int | None = None  # length of MPI's message, once it is known
    _nbytes = 0  # length of the data
    _error: Exception | None = None
    _refusal: Exception | None = None  # what MPI, or the reading of the envelope, has raised
    _comm: MessageBase | None = None
    _probed: ProbedMessage | None = None
    _message: Any = None  # memory that MPI receives into
    _begun: Sequence[MPI.Request] = ()  # the receive that MPI has begun
    _request = MPI.REQUEST_NULL  # the request in `_begun`, once it is known

    def begin(
        self,
        comm: MessageBase | None,
        endpoint: Endpoint,
        plan: Plan,
        owner: Any,
        stream: Any,
        matched: MPI.Message | None = None,
        probed: ProbedMessage | None = None,
    ) -> None:
        """Start MPI's receive of the next message on `comm`, or of the `matched` one.

        `probed` describes a `matched` message that a probe has found. Its source and tag may differ from those that MPI
        reports, because probes send messages again, from this process to itself. Messages that `comm` holds after a
        probe are received first. Without `comm` no receive is started: pass a message that MPI has received to
        `accept`. Call this in a try block; its handler has to call `Incoming.leave`.
        """
        context = self.context = endpoint.context
        self.endpoint, self.plan, self.buffer = endpoint, plan, plan.buffer
        self.stream = self._kernel_stream = stream
        # Keep the array itself, because the program may change its list.
        self.owner = owner[0] if type(owner) is list else owner
        self.status, scratch = MPI.Status(), context.scratch
        self._probed, self._scratch = probed, scratch
        if comm is None:
            return
        if HOLDING and matched is None:
            probed = self._probed = comm.probed.take(plan.rank, plan.tag)
            matched = None if probed is None else probed.message
        if isinstance(plan.buffer, TypedBuffer):
            plan.buffer.allocate(endpoint.device, stream)
        if plan.nbytes >= PINNED_NBYTES and endpoint.peers.is_far(plan.rank):
            scratch = self._scratch = context.pinned_scratch
        self._comm, nbytes, begun = comm, plan.room_nbytes, list[MPI.Request]()
        try:
            memory = self._message = scratch.free.pop() if 2 * nbytes <= KEPT_NBYTES else scratch.take(nbytes)
        except IndexError:
            memory = self._message = scratch.take(nbytes)
        self._begun = begun
        # Python runs no signal handler between MPI's call and the append to the list.
        if matched is not None:
            begun += map(MPI.Message.Irecv, (matched,), ([memory, MPI.BYTE],))
        elif len(memory) == KEPT_NBYTES:
            begun += map(MPI.Comm.Irecv, (comm,), ([memory, MPI.BYTE],), (plan.rank,), (plan.tag,))
        else:
            self._receive(memory, begun)
        (self._request,) = begun
        if endpoint.ring is not None:
            self._entry = endpoint.ring.add_packed(0, plan.facts)

    def cancel(self) -> None:
        """Cancel the receive, unless MPI has matched it.

        `has_arrived` becomes true in both cases, and `status` says whether the receive was cancelled.
        """
        with LOCK:
            if not self.has_arrived:
                self._is_cancelling = True
                if self._request:
                    self._request.Cancel()

    def poll(self) -> bool:
        """Test whether the message has arrived, and read its envelope. Return True once."""
        status, capacity_nbytes, context = self.status, self.plan.nbytes, self.context
        try:
            if self._refusal is None:
                if self._request and not self._request.Test(status):
                    return False
                is_cancelled = self._is_cancelling and status.Is_cancelled()
                nbytes = self._message_nbytes
                # Keep MPI's length: the status gets the length of the data below, and an interrupted poll is repeated.
                if nbytes is None:
                    nbytes = self._message_nbytes = 0 if is_cancelled else status.Get_elements(MPI.BYTE)
                if self._probed is not None and not is_cancelled:
                    self._probed.end(status)
                envelope = self.envelope = unpack(self._message, nbytes)
                if envelope is not None:
                    nbytes, self.clock = envelope.nbytes, envelope.clock
                    if envelope.clock > context.clock.now:
                        context.clock.observe(envelope.clock)
                    if envelope.answer or envelope.sender.node != context.sender.node:
                        self._meet(envelope)
                self._nbytes = nbytes
                status.Set_elements(MPI.BYTE, min(nbytes, capacity_nbytes))
                if nbytes > capacity_nbytes:
                    self._error = self._truncated(f"{nbytes}")
        except MPI.Exception as error:
            self._refusal = error
        except BaseException as error:
            # A call for another receive may be polling, so keep the error for the call that waits for this receive.
            self._refusal = own_error(error)
            if self._refusal is None:
                raise
        if self._refusal is not None:
            self._refuse(self._refusal)
        self.has_arrived = True
        return True

    def _meet(self, envelope: Envelope) -> None:
        """Record if the sender is on another node; send the answer that it requests."""
        if envelope.sender.node != self.context.sender.node:
            self.endpoint.peers.far.add(self.status.source)
        if envelope.answer and self.context.opened.bounce_address(envelope.sender) is not None:
            self.context.readers.answer(envelope.sender, envelope.answer - 1)

    def _receive(self, memory: memoryview, begun: list[MPI.Request]) -> None:
        """Begin MPI's receive into memory of any length; add its request to `begun`."""
        assert self._comm is not None
        spec, once = received_spec(memory)
        try:
            begun += map(MPI.Comm.Irecv, (self._comm,), (spec,), (self.plan.rank,), (self.plan.tag,))
        finally:
            if once is not None:
                once.Free()

    def _truncated(self, sent: str) -> MPIError:
        source, tag = self.status.source, self.status.tag
        text = f"rank {source} sent {sent} bytes with tag {tag}, the buffer has room for {self.plan.nbytes}"
        return MPIError(MPI.ERR_TRUNCATE, f"{self.plan.operation}: {text}; receive into a larger array")

    def _refuse(self, error: Exception) -> None:
        """Keep the error for the call that waits for this receive.

        MPI reports truncation only for messages that contain their data.
        """
        if self._probed is not None:
            self._probed.set_origin(self.status)
        if not isinstance(error, MPI.Exception):
            self._error = error
        elif error.Get_error_class() == MPI.ERR_TRUNCATE:
            self._error = self._truncated("more")
        else:
            self._error = self.endpoint.explained(error, self.plan.operation)
        # After a failure of some rank, a receive from MPI.ANY_SOURCE stays open in MPI.
        if self._request:
            self._request.Cancel()
            with suppress(MPI.Exception):
                self._request.Wait()
