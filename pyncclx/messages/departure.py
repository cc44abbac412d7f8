"""First half of a send: choose the transport, and send the envelope by MPI."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

from ..backends import Exported
from ..derived.buffers import TypedBuffer
from ..requests.open_receives import LOCK
from .arguments import PUT
from .endpoint import Endpoint
from .envelope import (
    EMPTY,
    ENVELOPE_NBYTES,
    GAP_NBYTES,
    INLINE,
    OFFERED,
    WINDOW,
    Envelope,
    eager,
    inline_nbytes,
    sent_spec,
)
from .memory.bounce import SLOT_NBYTES
from .memory.scratch import PINNED_NBYTES, host_memory
from .persistent.channels import Outlet
from .plan import Plan

#: The MPI call that sends the envelope; the key says whether the send is synchronous.
STARTS: dict[bool, Callable[..., MPI.Request]] = {False: MPI.Comm.Isend, True: MPI.Comm.Issend}


class Departure:
    """A send up to its envelope; `Outgoing` in `send.py` completes it.

    A short message is copied to a slot; if no slot is free, MPI transfers its data. A long message is offered: its
    receiver reads the buffer. The envelope of a persistent request's message also describes the channel. Between nodes
    messages have no envelope. Without a communicator MPI sends nothing, and the caller transfers `message`.

    Attributes
    ----------
    put : bytes
        Arguments of the kernel that copies a short message; empty once it is launched.
    peer : int
        The rank that receives the message.
    message : bytes-like
        The envelope, the data, or both, for MPI.
    is_inline : bool
        Whether MPI transfers the data.
    is_copied : bool
        Whether a kernel copies the data to a slot.
    is_settled : bool
        Whether `finish` has nothing to do for the message's own stream.
    """

    put, is_inline, is_copied, is_sent, clock = b"", False, False, False, 0
    _entry = 0
    _offered: int | None = None  # place of an offered message, until it is complete
    _request = MPI.REQUEST_NULL  # MPI.REQUEST_NULL until MPI's request is known

    def begin(
        self,
        comm: MPI.Comm | None,
        endpoint: Endpoint,
        plan: Plan,
        owner: Any,
        stream: Any,
        channel: Outlet | None = None,
    ) -> None:
        """Choose the transport, and let MPI send the envelope to the plan's rank."""
        self.endpoint, self.plan, self.buffer, self.peer, self.stream = endpoint, plan, plan.buffer, plan.rank, stream
        if isinstance(plan.buffer, TypedBuffer):
            plan.buffer.pack(endpoint, stream)
        # Keep the array itself, because the program may change its list.
        self.owner = owner[0] if type(owner) is list else owner
        self.is_settled = plan.is_free_at_once
        self._channel, context, ring = channel, endpoint.context, endpoint.ring
        self.context, clock = context, context.clock
        # Inlined from `LamportClock.next`, because this runs for each message.
        with LOCK:
            clock.now = self.clock = clock.now + 1
        if ring is not None and plan.is_free_at_once:
            record = plan.record = plan.record or ring.writer_of_ended(plan.facts)
            record()
        elif ring is not None:
            self._entry = ring.add_packed(0, plan.facts)
        place, once = None, None
        if plan.is_short and (plan.rank in endpoint.peers.readers or endpoint.peers.is_reader(plan.rank)):
            place = context.bounce.slots.take(self.clock, endpoint.peers.numbers[plan.rank])
        try:
            if place is None:
                self.message: Any = self._choose(needs_envelope=comm is None)
                if comm is not None:
                    spec, once = sent_spec(self.message)
                    self.message = spec[0]
            else:
                ready, slot, offset = context.bounce.slot_addresses[place]
                self.put, self.is_copied = PUT.pack(plan.buffer.address, slot, ready, plan.nbytes, self.clock), True
                located = None if channel is None else channel.located
                self.message = eager(context.sender, self.clock, plan.nbytes, place, endpoint.rank, offset, located)
                spec = [self.message, MPI.BYTE]
            if comm is not None:
                start = STARTS[plan.is_synchronous]
                # Python runs signal handlers after calls, so none runs between this assignment and MPI's call.
                self.is_sent = True
                self._request = start(comm, spec, plan.rank, plan.tag)
        except MPI.Exception as error:
            self.is_sent = False
            raise endpoint.explained(error, plan.operation) from error
        finally:
            if once is not None:
                once.Free()

    # The other transports. Each method returns the message for MPI, or None if its transport cannot be used.

    def _choose(self, *, needs_envelope: bool) -> Any:
        peers, plan = self.endpoint.peers, self.plan
        if plan.nbytes == 0:
            return self._envelope(EMPTY).pack()
        blocks = plan.is_staged and self.endpoint.caller.blocking == "host"
        if blocks and self.context.receives.pending_sends.takes_copies:
            return self._data_alone()
        if peers.is_reader(self.peer):
            return (None if plan.is_short else self._offer()) or self._inline()
        if peers.are_far(self.peer) and not needs_envelope:
            return self._data_alone()
        return self._inline(answer=peers.numbers[self.peer] + 1)

    def _envelope(self, transport: int) -> Envelope:
        envelope = Envelope(self.context.sender, transport, self.clock, self.plan.nbytes, source=self.endpoint.rank)
        return envelope if self._channel is None else self._channel.described(envelope)

    def _offer(self) -> bytes | None:
        """Return an offer's packed envelope.

        Return None if no place is free, or if the memory cannot be shared.
        """
        located = self._located()
        if located is None:
            return None
        envelope, exported = located
        number = self.endpoint.peers.numbers[self.peer]
        place = self.context.bounce.tickets.take(self.clock, number, exported)
        if place is None:
            if exported is not None:
                exported.close()
            return None
        self._offered = place
        return envelope._replace(place=place).pack()

    def _located(self) -> tuple[Envelope, Exported | None] | None:
        """Return an envelope that locates the buffer, and the buffer's export, if any.

        Return None if the memory cannot be shared.
        """
        address, team = self.buffer.address, self.endpoint.team
        window = team.windows.at(address) if team else None
        if window is not None:
            return self._envelope(WINDOW).located_in_window(window.number, address - window.memory.address), None
        device = self.endpoint.device
        # The export copies the buffer now, so earlier work on the stream must have ended.
        if device.exports_are_copies:
            device.synchronize(self.stream)
        exported = device.export(address, self.plan.nbytes) or self._export_copy()
        if exported is None:
            return None
        return self._envelope(OFFERED).located(exported), exported

    def _export_copy(self) -> Exported | None:
        """Export a copy of the data; return None without exportable memory.

        A buffer cannot be exported if, for example, a stream-ordered pool (cudaMallocAsync) has allocated it.
        """
        device, nbytes = self.endpoint.device, self.plan.nbytes
        if device.exports_are_copies:
            return None
        try:
            copy = device.allocate_temporary(nbytes, self.stream)
        except MemoryError:
            return None
        exported = device.export(copy.address, nbytes)
        if exported is not None:
            self.endpoint.copy(copy.address, self.buffer.address, nbytes, self.stream)
            self.owner = self.owner, copy
        return exported

    def _inline(self, answer: int = 0) -> Any:
        """Return a message for MPI that holds envelope and data.

        With `answer`, the receiver answers if it can map the bounce memory.
        """
        self.is_inline = True
        self.endpoint.peers.introduce(self.peer)
        envelope = self._envelope(INLINE)._replace(answer=answer)
        located = self._located() if envelope.channel and self.plan.nbytes > SLOT_NBYTES else None
        # Only the channel uses this location.
        if located is not None:
            envelope = envelope.located_as(located[0])
        message = np.empty(inline_nbytes(self.plan.nbytes) + GAP_NBYTES, np.uint8)
        message[:ENVELOPE_NBYTES] = np.frombuffer(envelope.pack(), np.uint8)
        device, address = self.endpoint.device, MPI.Get_address(message) + ENVELOPE_NBYTES + GAP_NBYTES
        device.copy_pageable(address, self.buffer.address, self.plan.nbytes, self.stream)
        return message

    def _data_alone(self) -> memoryview:
        """Return a copy of the data as MPI's message."""
        self.is_inline = True
        device, nbytes = self.endpoint.device, self.plan.nbytes
        is_pinned = nbytes >= PINNED_NBYTES
        message = host_memory(device, nbytes, is_pinned=is_pinned)
        if not is_pinned:
            device.copy_pageable(MPI.Get_address(message), self.buffer.address, nbytes, self.stream)
        else:
            device.copy(MPI.Get_address(message), self.buffer.address, nbytes, self.stream)
            device.synchronize(self.stream)
        return message.data

    def withdraw(self) -> None:
        """Free the place of a message whose envelope was not sent."""
        self.put, self._offered = b"", None
        if self.clock:
            self.context.bounce.withdraw(self.clock)
