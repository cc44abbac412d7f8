"""The end of messages whose peer has failed, or that MPI has refused.

This process writes the words that the peer would have written. Then kernels that wait for a failed rank return, and
the place of a refused message is free. The abort word is not set: kernels of messages between live ranks read the same
error record, and must continue.
"""

from __future__ import annotations

import struct

from ...backends import Device
from ..memory.bounce import CLOCK, PLACES, BounceMemory, words_of

# A clock later than that of every message.
_READY = 0xFFFFFFFF


class Rescue:
    """Writer of words that kernels and places wait for, used by the failure detector.

    Attributes
    ----------
    pulled : dict of bytes to dict
        By the uid of the sender and the place: the clock of the last message that a kernel here was launched for.
    """

    def __init__(self, device: Device, bounce: BounceMemory) -> None:
        self._device, self._bounce = device, bounce
        self.pulled: dict[bytes, dict[int, int]] = {}

    def receives(self, uid: bytes, bounce: int) -> frozenset[int]:
        """Release kernels that wait for data of a failed sender.

        Return the clocks of messages whose data will never arrive.
        """
        pulled, (first, _) = dict(self.pulled.get(uid, {})), words_of(bounce, 0)
        words = struct.unpack(f"={PLACES}Q", self._device.peek(first, CLOCK.size * PLACES))
        broken = frozenset(clock for place, clock in pulled.items() if words[place] < clock)
        if broken:
            self.write(first, CLOCK.pack(_READY) * PLACES)
        return broken

    def sends(self, number: int) -> bool:
        """End the messages to a rank (`Peers.numbers`). Return whether there were any."""
        held = [*self._bounce.slots.held_for(number), *self._bounce.tickets.held_for(number)]
        for place, clock in held:
            self.end(place, clock)
        return bool(held)

    def withdraw(self, clock: int) -> None:
        """End the message with a clock, which was not sent, if it has a place."""
        for place in (self._bounce.slots.place_of(clock), self._bounce.tickets.place_of(clock)):
            if place is not None:
                self.end(place, clock)

    def end(self, place: int, clock: int) -> None:
        """End the sent message of a place, as if its receiver had read it."""
        _, done = words_of(self._bounce.address, place)
        self.write(done, CLOCK.pack(clock))

    def write(self, address: int, data: bytes) -> None:
        """Write to device memory at once, without waiting for streams of the program."""
        with self._device.attached():
            self._device.poke(address, data)
