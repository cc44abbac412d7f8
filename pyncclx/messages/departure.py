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
from .mpi_transfer import GAP_NBYTES
from .scratch import PINNED_NBYTES, host_memory
from .side import Plan

SYNCHRONOUS = ("Ssend", "Issend", "Ssend_init")  # over only when matched


class Departure:
    """A message whose envelope MPI has been given; `send.py` has what follows.

    A short one is copied to a slot, or MPI has its data, if no slot is free. A long one is offered: its receiver reads
    the buffer. The envelope of a persistent request's message describes its channel, too. Between nodes messages have
    no envelope.

    Attributes
    ----------
    put : bytes
        Arguments of the kernel that copies a short message, until it is launched.
    peer, nbytes : int
        The rank that receives it, and its length.
    is_inline : bool
        Whether MPI transfers the data.
    is_copied : bool
        Whether a kernel copies it to a slot.
    """

    put, is_inline, is_copied = b"", False, False
    _entry = 0
    _offered: int | None = None  # the place of an offered message that is not known to be over
    _place: int | None = None  # that the message holds until its receiver has read it

    def __init__(
        self,
        endpoint: Endpoint,
        plan: Plan,
        owner: Any,
        stream: Any,
        start: Callable[[Any], MPI.Request],
        channel: Outlet | None = None,
        *,
        needs_envelope: bool = False,
    ) -> None:
        self.endpoint, self.postbox, self.operation = endpoint, endpoint.postbox, plan.operation
        self.stream, self.peer, self.tag, self.nbytes = stream, plan.rank, plan.tag, plan.nbytes
        self.buffer, self._channel = plan.buffer, channel
        self.owner = owner[0] if type(owner) is list else owner  # the program may take the array out of its list
        self._is_free_at_once = plan.nbytes <= SLOT_NBYTES and plan.operation not in SYNCHRONOUS  # it waits for nobody
        self.clock = self.postbox.clock.next()
        if endpoint.ring is not None:
            if self._is_free_at_once:
                endpoint.ring.add_over(plan.facts)
            else:
                self._entry = endpoint.ring.add_packed(0, plan.facts)
        is_eager = 0 < plan.nbytes <= SLOT_NBYTES and plan.rank in endpoint.peers.readers
        self._message = (is_eager and self._eager()) or self._choose(needs_envelope)  # what MPI reads
        try:
            self._request = start(self._message)
        except MPI.Exception as error:
            self.withdraw()
            raise endpoint.explained(error, plan.operation) from error

    # How the data travels: each method returns the message for MPI, or None if it cannot travel so.

    def _choose(self, needs_envelope: bool) -> Any:
        peers = self.endpoint.peers
        if self.nbytes == 0:
            return self._envelope(EMPTY).pack()
        if peers.is_reader(self.peer):
            return (self._eager() if self.nbytes <= SLOT_NBYTES else self._offer()) or self._inline()
        if peers.are_far(self.peer) and not needs_envelope:
            return self._data_alone()
        return self._inline(answer=peers.numbers[self.peer] + 1)

    def _envelope(self, transport: int) -> Envelope:
        envelope = Envelope(self.postbox.sender, transport, self.clock, self.nbytes, source=self.endpoint.rank)
        if self._channel is not None:
            self._channel.describe(envelope)
        return envelope

    def _eager(self) -> bytes | None:
        """The data is copied to a slot."""
        bounce, clock, nbytes = self.postbox.bounce, self.clock, self.nbytes
        place = self._place = bounce.slots.take(clock, self.endpoint.peers.numbers[self.peer])
        if place is None:
            return None
        ready, slot = bounce.slot_addresses[place]
        self.put, self.is_copied = PUT.pack(self.buffer.address, slot, ready, nbytes, clock), True
        channel = None if self._channel is None else self._channel.located
        return eager(self.postbox.sender, clock, nbytes, place, self.endpoint.rank, slot - bounce.address, channel)

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
        self._offered = self._place = envelope.place = place
        return envelope.pack()

    def _located(self) -> tuple[Envelope, Exported | None] | None:
        """The buffer, as a receiver finds it; None if its memory cannot be shared."""
        address, team = self.buffer.address, self.endpoint.team
        window = team.windows.at(address) if team else None
        if window is not None:
            envelope = self._envelope(WINDOW)
            envelope.locate_in_window(window.number, address - window.memory.address)
            return envelope, None
        device = self.endpoint.device
        if device.exports_are_copies:  # made now, of what the stream has still to put there
            device.synchronize(self.stream)
        exported = device.export(address, self.nbytes)
        if exported is None:
            return None
        envelope = self._envelope(OFFERED)
        envelope.locate(exported)
        return envelope, exported

    def _inline(self, answer: int = 0) -> Any:
        """MPI transfers the data; with `answer`, the receiver is to answer if it can read the bounce memory."""
        self.is_inline = True
        self.endpoint.peers.introduce(self.peer)
        envelope = self._envelope(INLINE)
        envelope.answer = answer
        located = self._located() if envelope.channel and self.nbytes > SLOT_NBYTES else None
        if located is not None:  # for the channel alone
            envelope.locate_as(located[0])
        message = np.empty(inline_nbytes(self.nbytes) + GAP_NBYTES, np.uint8)
        message[:ENVELOPE_NBYTES] = np.frombuffer(envelope.pack(), np.uint8)
        device, address = self.endpoint.device, MPI.Get_address(message) + ENVELOPE_NBYTES + GAP_NBYTES
        device.copy(address, self.buffer.address, self.nbytes, self.stream)
        device.synchronize(self.stream)
        return message

    def _data_alone(self) -> memoryview:
        """MPI transfers the data as that of a host array, to a rank that can read nothing of this process's memory."""
        self.is_inline = True
        device, nbytes = self.endpoint.device, self.nbytes
        message = host_memory(device, nbytes, is_pinned=nbytes >= PINNED_NBYTES)
        device.copy(MPI.Get_address(message), self.buffer.address, nbytes, self.stream)
        device.synchronize(self.stream)
        return message.data

    def withdraw(self) -> None:
        """Give the place back: no receiver has got the envelope, and none will."""
        self.put, self._offered = b"", None
        if self._place is not None:
            self.postbox.rescue.end(self._place, self.clock)
