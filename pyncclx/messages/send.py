"""Sending: choose how the data travels, give MPI the envelope, launch what the sender's stream has to do."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

from ..backends import Exported
from ..errors import MPIError, SendTimeout
from ..recording.failures import noted
from .arguments import PUT, offer_arguments
from .batch import Batch
from .bounce import SLOT_NBYTES, words_of
from .channels import Outlet
from .endpoint import Endpoint
from .envelope import EAGER, EMPTY, ENVELOPE_NBYTES, INLINE, OFFERED, WINDOW, Envelope, eager, inline_nbytes
from .mpi_transfer import GAP_NBYTES
from .scratch import PINNED_NBYTES, host_memory
from .side import Plan

SYNCHRONOUS = ("Ssend", "Issend", "Ssend_init")  # over only when matched
_THREAD_NBYTES = 64  # that a thread of `put_eager` copies: four packs, all on their way at once (not measured)


class Outgoing:
    """A message that was sent.

    A short one is copied to a slot, or MPI has its data, if no slot is free: it is over at once, whether its receiver
    comes or not. A long one is offered: the buffer is in use until its receiver has read it, which `finish` makes the
    current stream wait for. If no call will finish it, `abandon` lets the library keep the buffer so long. The receiver
    gets the envelope before the kernel is launched that copies the message or sets its ready word: both hosts launch at
    the same time. That of a persistent request describes its channel, too. Between nodes messages have no envelope.

    Attributes
    ----------
    put : bytes
        Arguments of the kernel that copies a short message, until it is launched.
    peer, nbytes : int
        The rank that receives it, and its length.
    is_inline : bool
        Whether MPI transfers the data.
    """

    put, is_inline = b"", False
    _is_open = False  # the watcher lets MPI go on for it
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
        self.buffer, self.owner, self._channel = plan.buffer, owner, channel
        self._is_free_at_once = plan.nbytes <= SLOT_NBYTES and plan.operation not in SYNCHRONOUS  # it waits for nobody
        self.clock = self.postbox.clock.next()
        self._entry = 0 if endpoint.ring is None else endpoint.ring.add_packed(0, plan.facts)
        self._message = self._choose(needs_envelope)  # what MPI reads
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
        if self.peer in peers.readers or peers.is_reader(self.peer):
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
        self.put = PUT.pack(self.buffer.address, slot, ready, nbytes, clock)
        if self._channel is None:
            return eager(self.postbox.sender, clock, nbytes, place, self.endpoint.rank, slot - bounce.address)
        envelope = self._envelope(EAGER)
        envelope.place, envelope.offset = place, slot - bounce.address
        return envelope.pack()

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

    # What MPI has to do whatever this process waits for

    def post(self) -> None:
        """Let MPI go on sending it."""
        unsent = self.postbox.receives.unsent
        if unsent.dropped:
            unsent.take_dropped()
        if self._is_free_at_once:
            message, self._message = self._message, None
            unsent.keep(self._request, message)
        elif not self._request.Get_status():  # which leaves an error to the call that waits
            self._is_open = True
            unsent.add(self)

    def _close(self) -> None:
        """End what `post` has begun."""
        self._is_open = False
        self.postbox.receives.unsent.discard(self)

    # What the stream has to do

    def signal_ready(self) -> None:
        """Let the receiver read what the stream has put into the buffer so far."""
        if self.put:
            self._launch_put()
        if self._offered is not None:
            self._launch_offer(self.stream, ready=True, wait=False)

    def signal_ready_and_wait(self) -> None:
        """Do so, and make the stream wait until it was read. No receive may be open: the receiver could wait for it."""
        if self.put:
            self._launch_put()
        self._leave_to_mpi()  # first: MPI may need this rank to bring the envelope, for which the receiver waits
        if self._offered is not None:
            self._launch_offer(self.stream, ready=True, wait=True)
            self._offered = None

    def signal_ready_by(self, batch: Batch) -> None:
        """Do what `signal_ready` does by the launch of a batch."""
        if self.put:
            batch.put(self.put, self.peer, self.tag)
            self.put = b""
        if self._offered is not None:
            ready, _ = words_of(self.postbox.bounce.address, self._offered)
            batch.signal(ready=ready, clock=self.clock, peer=self.peer, tag=self.tag)

    def _launch_put(self) -> None:
        threads = min(-(-self.nbytes // (_THREAD_NBYTES * 32)) * 32, self.endpoint.device.threads)
        self.endpoint.launch(self.operation, "put_eager", 1, threads, self.put, self.stream)
        self.put = b""

    def _launch_offer(self, stream: Any, *, ready: bool, wait: bool) -> None:
        assert self._offered is not None
        ready_word, done_word = words_of(self.postbox.bounce.address, self._offered)
        arguments = offer_arguments(
            ready=ready_word if ready else 0,
            done=done_word if wait else 0,
            clock=self.clock,
            peer=self.peer,
            tag=self.tag,
        )
        self.endpoint.launch(self.operation, "offer", 1, 1, arguments, stream)

    # The end

    def finish(self, stream: Any) -> None:
        """Make `stream` wait for the end of the message.

        A receive whose kernel is launched later on that stream would come after it too, and the peer may wait for
        that one first. So the host stays here until no receive is open, or the message is over.
        """
        receives = self.postbox.receives
        while not (self._offered is None or receives.idle or self.is_over()):
            receives.launch_arrived()
            os.sched_yield()
        self._leave_to_mpi()  # first, as above
        if self._offered is not None:
            self._launch_offer(stream, ready=False, wait=True)
            self._offered = None

    def _leave_to_mpi(self) -> None:
        """Wait until MPI has the message; what is free at once is kept instead."""
        ring = self.endpoint.ring
        if self._is_open:
            self._close()
        if self._is_free_at_once:
            message, self._message = self._message, None
            if message is not None:
                self.postbox.receives.unsent.keep(self._request, message)
            if ring is not None:
                ring.end(self._entry)
            return
        try:
            self.postbox.receives.wait(self._request, self._hopeless)
        except Exception as error:
            self.postbox.receives.unsent.keep(self._request, self._message)  # MPI may still read it
            if not isinstance(error, MPI.Exception) or isinstance(error, MPIError):
                raise
            raise self.endpoint.explained(error, self.operation) from error
        self.endpoint.check_peer(self.operation, self.peer)
        if ring is not None:
            ring.end(self._entry)

    def _hopeless(self, waited_s: float) -> Exception | None:
        """Return why the receiver will not come, after a wait for it in MPI."""
        if waited_s <= self.endpoint.timeout_s:
            return self.endpoint.failure_of(self.peer, self.operation)
        operation = f"{self.operation} with tag {self.tag}"
        failure = self.endpoint.failure = noted(SendTimeout(operation, self.endpoint.rank, self.peer))
        return failure

    def is_over(self) -> bool:
        """Whether `finish` would return at once: the buffer may be written again, by the host too."""
        return self._is_free_at_once or self.has_ended()

    def has_ended(self) -> bool:
        """Whether nothing uses the buffer any more: its receiver has read it, and MPI has sent what it was given."""
        if self._offered is not None and self.postbox.bounce.done_words(self._offered, 1)[0] == self.clock:
            self._offered = None
        try:
            is_over = self._offered is None and bool(self._request.Test())
        except MPI.Exception as error:
            raise self.endpoint.explained(error, self.operation) from error
        if is_over and self._is_open:
            self._close()
        return is_over

    def abandon(self) -> None:
        """Let it go on without a call that finishes it: the library keeps it until it has ended."""
        if self._is_open:
            self._close()
        self.keep_memory()
        self.postbox.receives.unsent.keep_message(self)

    def keep_memory(self) -> None:
        """Keep the array until its stream has done what it has by now."""
        memory = self.buffer, self.owner
        self.postbox.receives.unsent.keep_for(self.endpoint.device, self.stream, memory)
