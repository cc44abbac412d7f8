"""Messages that nobody ends: the words that kernels and places wait for are written here.

Kernels that wait for a rank that has failed leave then. A message that MPI has refused gives its place back.

Kernels of messages between ranks that live go on: they have the same error record, so its abort word stays as it is.
"""

from __future__ import annotations

import struct

from ..backends import Device
from .bounce import CLOCK, PLACES, BounceMemory, words_of

_READY = 0xFFFFFFFF  # as a clock: later than that of every message


class Rescue:
    """Writes the words; the failure detector's thread calls it.

    Attributes
    ----------
    pulled : dict of bytes to dict
        By the uid of the sender, and by place: the clock of the last message that a kernel here was launched for.
    """

    def __init__(self, device: Device, bounce: BounceMemory) -> None:
        self._device, self._bounce = device, bounce
        self.pulled: dict[bytes, dict[int, int]] = {}

    def receives(self, uid: bytes, bounce: int) -> frozenset[int]:
        """Let kernels leave that wait for data of a sender; return the clocks of messages whose data never came."""
        pulled, (first, _) = dict(self.pulled.get(uid, {})), words_of(bounce, 0)
        words = struct.unpack(f"={PLACES}Q", self._device.peek(first, CLOCK.size * PLACES))
        broken = frozenset(clock for place, clock in pulled.items() if words[place] < clock)
        if broken:
            self.write(first, CLOCK.pack(_READY) * PLACES)
        return broken

    def sends(self, number: int) -> bool:
        """End the messages to a rank, by its number; return whether there were any."""
        held = [*self._bounce.slots.held_for(number), *self._bounce.tickets.held_for(number)]
        for place, clock in held:
            self.end(place, clock)
        return bool(held)

    def end(self, place: int, clock: int) -> None:
        """End a message that this process has sent, by its place, as if its receiver had read it."""
        _, done = words_of(self._bounce.address, place)
        self.write(done, CLOCK.pack(clock))

    def write(self, address: int, data: bytes) -> None:
        """Write to memory of the device now, behind no stream of the program's."""
        with self._device.attached():
            self._device.poke(address, data)
