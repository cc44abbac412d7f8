"""The first half of a send: choose how the data travels, and give MPI the envelope."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

from ..backends import Exported
from .arguments import PUT
from .bounce import SLOT_NBYTES
from .channels import Outlet
from .endpoint import Endpoint
from .envelope import EMPTY, ENVELOPE_NBYTES, INLINE, OFFERED, WINDOW, Envelope, eager, inline_nbytes
from .mpi_transfer import GAP_NBYTES, start_send
from .scratch import PINNED_NBYTES, host_memory
from .side import Plan
from .typed import TypedBuffer

#: What starts MPI's part, by whether the send is over only when it has been matched.
STARTS: dict[bool, Callable[..., MPI.Request]] = {False: MPI.Comm.Isend, True: MPI.Comm.Issend}


class Departure:
    """A message whose envelope MPI has been given; `send.py` has what follows.

    A short one is copied to a slot, or MPI has its data, if no slot is free. A long one is offered: its receiver reads
    the buffer. The envelope of a persistent request's message describes its channel, too. Between nodes messages have
    no envelope. MPI has no part in a message without a communicator: its `message` goes another way.

    Attributes
    ----------
    put : bytes
        Arguments of the kernel that copies a short message, until it is launched.
    peer : int
        The rank that receives it.
    message : bytes-like
        What MPI transfers.
    is_inline : bool
        Whether MPI transfers the data.
    is_copied : bool
        Whether a kernel copies it to a slot.
    """

    put, is_inline, is_copied = b"", False, False
    _entry = 0
    _offered: int | None = None  # the place of an offered message that is not known to be over
    _place: int | None = None  # that the message holds until its receiver has read it
    _request = MPI.REQUEST_NULL

    def __init__(
        self,
        comm: MPI.Comm | None,
        endpoint: Endpoint,
        plan: Plan,
        owner: Any,
        stream: Any,
        channel: Outlet | None = None,
    ) -> None:
        self.endpoint, self.plan, self.buffer, self.peer, self.stream = endpoint, plan, plan.buffer, plan.rank, stream
        if isinstance(plan.buffer, TypedBuffer):
            plan.buffer.pack(endpoint, stream)
        self.owner = owner[0] if type(owner) is list else owner  # the program may take the array out of its list
        self._channel, postbox, ring = channel, endpoint.postbox, endpoint.ring
        self.postbox, self.clock = postbox, postbox.clock.next()
        if ring is not None and plan.is_free_at_once:
            record = plan.record = plan.record or ring.writer_of_ended(plan.facts)
            record()
        elif ring is not None:
            self._entry = ring.add_packed(0, plan.facts)
        place, start = None, STARTS[plan.is_synchronous]
        if plan.is_short and (plan.rank in endpoint.peers.readers or endpoint.peers.is_reader(plan.rank)):
            place = self._place = postbox.bounce.slots.take(self.clock, endpoint.peers.numbers[plan.rank])
        try:
            if place is None:
                self.message: Any = self._choose(needs_envelope=comm is None)
                if comm is not None:
                    self._request = start_send(start, comm, plan.rank, plan.tag, self.message)
            else:  # a kernel copies the data to a slot
                ready, slot, offset = postbox.bounce.slot_addresses[place]
                self.put, self.is_copied = PUT.pack(plan.buffer.address, slot, ready, plan.nbytes, self.clock), True
                located = None if channel is None else channel.located
                self.message = eager(postbox.sender, self.clock, plan.nbytes, place, endpoint.rank, offset, located)
                if comm is not None:
                    self._request = start(comm, [self.message, MPI.BYTE], plan.rank, plan.tag)
        except MPI.Exception as error:
            self.withdraw()
            raise endpoint.explained(error, plan.operation) from error

    # How the data travels otherwise: each method returns the message for MPI, or None if it cannot travel so.

    def _choose(self, *, needs_envelope: bool) -> Any:
        peers, plan = self.endpoint.peers, self.plan
        if plan.nbytes == 0:
            return self._envelope(EMPTY).pack()
        if peers.is_reader(self.peer):
            return (None if plan.is_short else self._offer()) or self._inline()
        if peers.are_far(self.peer) and not needs_envelope:
            return self._data_alone()
        return self._inline(answer=peers.numbers[self.peer] + 1)

    def _envelope(self, transport: int) -> Envelope:
        envelope = Envelope(self.postbox.sender, transport, self.clock, self.plan.nbytes, source=self.endpoint.rank)
        return envelope if self._channel is None else self._channel.described(envelope)

    def _offer(self) -> bytes | None:
        """The receiver reads the buffer."""
        located = self._located()
        if located is None:
            return None
        envelope, exported = located
        number = self.endpoint.peers.numbers[self.peer]
        place = self.postbox.bounce.tickets.take(self.clock, number, exported)
        if place is None:
            if exported is not None:
                exported.close()
            return None
        self._offered = self._place = place
        return envelope._replace(place=place).pack()

    def _located(self) -> tuple[Envelope, Exported | None] | None:
        """The buffer, as a receiver finds it; None if its memory cannot be shared."""
        address, team = self.buffer.address, self.endpoint.team
        window = team.windows.at(address) if team else None
        if window is not None:
            return self._envelope(WINDOW).located_in_window(window.number, address - window.memory.address), None
        device = self.endpoint.device
        if device.exports_are_copies:  # made now, of what the stream has still to put there
            device.synchronize(self.stream)
        exported = device.export(address, self.plan.nbytes)
        if exported is None:
            return None
        return self._envelope(OFFERED).located(exported), exported

    def _inline(self, answer: int = 0) -> Any:
        """MPI transfers the data; with `answer`, the receiver is to answer if it can read the bounce memory."""
        self.is_inline = True
        self.endpoint.peers.introduce(self.peer)
        envelope = self._envelope(INLINE)._replace(answer=answer)
        located = self._located() if envelope.channel and self.plan.nbytes > SLOT_NBYTES else None
        if located is not None:  # for the channel alone
            envelope = envelope.located_as(located[0])
        message = np.empty(inline_nbytes(self.plan.nbytes) + GAP_NBYTES, np.uint8)
        message[:ENVELOPE_NBYTES] = np.frombuffer(envelope.pack(), np.uint8)
        device, address = self.endpoint.device, MPI.Get_address(message) + ENVELOPE_NBYTES + GAP_NBYTES
        device.copy(address, self.buffer.address, self.plan.nbytes, self.stream)
        device.synchronize(self.stream)
        return message

    def _data_alone(self) -> memoryview:
        """MPI transfers the data as that of a host array, to a rank that can read nothing of this process's memory."""
        self.is_inline = True
        device, nbytes = self.endpoint.device, self.plan.nbytes
        message = host_memory(device, nbytes, is_pinned=nbytes >= PINNED_NBYTES)
        device.copy(MPI.Get_address(message), self.buffer.address, nbytes, self.stream)
        device.synchronize(self.stream)
        return message.data

    def withdraw(self) -> None:
        """Give the place back: no receiver has got the envelope, and none will."""
        self.put, self._offered = b"", None
        if self._place is not None:
            self.postbox.rescue.end(self._place, self.clock)
