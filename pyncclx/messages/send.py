"""Sending: choose how the data travels, give MPI the envelope, launch what the sender's stream has to do."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from mpi4py import MPI

from ..arrays.buffers import Buffer
from ..backends import Exported
from .begin import GAP
from .endpoint import OFFER, PUT, Endpoint
from .envelope import EAGER, EMPTY, ENVELOPE_NBYTES, INLINE, OFFERED, WINDOW, inline_nbytes, pack
from .postbox import SLOT_NBYTES

SYNCHRONOUS = ("Ssend", "Issend")  # over only when matched
_NO_MEMORY = (0, 0, 0, b"")  # allocation, identity, allocation_nbytes, handle of an `Envelope`
_WORTH_A_THREAD = 64  # bytes that a thread of `put_eager` copies: four packs, all on their way at once


class Outgoing:
    """A message that was sent.

    A short one has been copied to a slot, or is in MPI's hands: it is over when MPI has its envelope. A long one is
    offered: the buffer is in use until its receiver has read it, which `finish` makes the current stream wait for.
    The receiver hears of it before the kernel is launched that copies it, or says that it is ready, so that its host
    goes on while this one launches.

    Attributes
    ----------
    put : bytes
        What is told the kernel that copies a short one, until it is launched.
    """

    def __init__(
        self, endpoint: Endpoint, operation: str, buffer: Buffer, dest: int, tag: int, stream: Any, start: Any
    ) -> None:
        self.endpoint, self.postbox = endpoint, endpoint.postbox
        self.operation, self.dest, self.tag, self.stream = operation, dest, tag, stream
        self.buffer, self._nbytes = buffer, buffer.nbytes  # the buffer keeps the memory
        self.clock = self.postbox.next_clock()
        self._offered: int | None = None  # the place of an offered message that is not known to be over
        self.put = b""
        self._keep = self._message(buffer, dest)  # what MPI reads
        self._request: MPI.Request = start(self._keep, dest, tag)

    def _message(self, buffer: Buffer, dest: int) -> Any:
        if self._nbytes == 0:
            return self._envelope(EMPTY, 0, 0)
        if not self.endpoint.is_read_by(dest):
            return self._inline(buffer, answer=self.endpoint.number_of(dest) + 1)
        return self._eager(buffer) or self._offer(buffer) or self._inline(buffer)

    # Each gives the message for MPI, or None if the data cannot travel so.

    def _envelope(
        self, transport: int, control: int, offset: int, answer: int = 0, memory: tuple[Any, ...] = _NO_MEMORY
    ) -> bytes:
        return pack(self.postbox.sender, transport, self.clock, self._nbytes, control, answer, offset, *memory)

    def _eager(self, buffer: Buffer) -> bytes | None:
        postbox, nbytes = self.postbox, self._nbytes
        if nbytes > SLOT_NBYTES or (place := postbox.slots.take()) is None:
            return None
        base, offset = postbox.memory.address, postbox.slot_offset(place)
        ready, _ = postbox.words_of(place, base)
        self.put = PUT.pack(buffer.address, base + offset, ready, nbytes, self.clock)
        postbox.slots.hold(place, self.clock)
        return self._envelope(EAGER, place, offset)

    def _offer(self, buffer: Buffer) -> bytes | None:
        team = self.endpoint.team
        window = team.windows.at(buffer.address) if team else None
        if window is not None:
            offset = buffer.address - window.memory.address
            return self._hold(WINDOW, None, offset, (window.number, *_NO_MEMORY[1:]))
        exported = self.endpoint.device.export(buffer.address, self._nbytes)
        if exported is None:
            return None
        memory = exported.address, exported.identity, exported.nbytes, exported.handle
        return self._hold(OFFERED, exported, exported.offset, memory)

    def _hold(self, transport: int, exported: Exported | None, offset: int, memory: tuple[Any, ...]) -> bytes | None:
        """The envelope of an offered message, which holds a place."""
        place = self.postbox.tickets.take()
        if place is None:
            if exported is not None:
                exported.close()
            return None
        self.postbox.tickets.hold(place, self.clock, exported)
        self._offered = place
        return self._envelope(transport, place, offset, 0, memory)

    def _inline(self, buffer: Buffer, answer: int = 0) -> Any:
        message = np.empty(inline_nbytes(self._nbytes) + GAP, np.uint8)
        message[:ENVELOPE_NBYTES] = np.frombuffer(self._envelope(INLINE, 0, 0, answer), np.uint8)
        device, data = self.endpoint.device, MPI.Get_address(message) + ENVELOPE_NBYTES + GAP
        device.copy(data, buffer.address, self._nbytes, self.stream)
        device.synchronize(self.stream)
        return message

    # What the stream has to do for an offered message

    def say_ready(self) -> None:
        """What the stream has done so far is what the receiver may read."""
        if self.put:
            self._launch_put()
        if self._offered is not None:
            self._launch_offer(self.stream, ready=True, wait=False)

    def say_ready_and_wait(self) -> None:
        """That, and the stream waits until it was read. Nothing may be awaited that the receiver could wait for."""
        if self.put:
            self._launch_put()
        if self._offered is not None:
            self._launch_offer(self.stream, ready=True, wait=True)
            self._offered = None
        self._leave_to_mpi()

    def _launch_put(self) -> None:
        threads = min(-(-self._nbytes // (_WORTH_A_THREAD * 32)) * 32, self.endpoint.device.threads)
        self.endpoint.launch(self.operation, "put_eager", 1, threads, self.put, self.stream)
        self.put = b""

    def _leave_to_mpi(self) -> None:
        """Wait until MPI has the message; not for a short one, which nobody writes to, unless it must be matched."""
        if self._nbytes <= SLOT_NBYTES and self.operation not in SYNCHRONOUS:
            self.postbox.keep(self._request, self._keep)
        else:
            self.postbox.wait(self._request)

    def _launch_offer(self, stream: Any, *, ready: bool, wait: bool) -> None:
        assert self._offered is not None
        ready_word, done_word = self.postbox.words_of(self._offered, self.postbox.memory.address)
        arguments = OFFER.pack(ready_word if ready else 0, done_word if wait else 0, self.clock, self.dest, self.tag)
        self.endpoint.launch(self.operation, "offer", 1, 1, arguments, stream)

    def finish(self, stream: Any) -> None:
        """What is enqueued on `stream` from now on comes after the message.

        A receive whose kernel is launched later on that stream would come after it too, and the peer may wait for
        that one first. So the host stays here until no receive is open, or the message is over.
        """
        while self._offered is not None and not self.postbox.idle:
            self.postbox.progress()
            if not self.postbox.idle:
                self.is_over()
                os.sched_yield()
        if self._offered is not None:
            self._launch_offer(stream, ready=False, wait=True)
            self._offered = None
        self._leave_to_mpi()

    def is_over(self) -> bool:
        """Whether the buffer is free for everybody, the host included."""
        if self._offered is not None and self.postbox.done_words(self._offered, 1)[0] == self.clock:
            self._offered = None
        return self._offered is None and bool(self._request.Test())
