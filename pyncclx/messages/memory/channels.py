"""Memory of channels: slots, and words in the bounce memory."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from ...backends import Device, Exported
from .arena import ALIGNMENT, Arena, Piece
from .bounce import END_NBYTES, ENDS, end_address


class Slots(NamedTuple):
    """Two slots of a channel, `stride` bytes apart in a piece of exported memory."""

    piece: Piece
    stride: int

    @property
    def memory(self) -> Exported:
        """The exported memory that holds the slots."""
        return self.piece.memory

    @property
    def offset(self) -> int:
        """Offset of the first slot in `memory`."""
        return self.piece.offset

    @property
    def address(self) -> int:
        """Address of the first slot."""
        return self.piece.address


class ChannelMemory:
    """The words and slots of this process's channel ends."""

    def __init__(self, device: Device, bounce: int, arena: Arena) -> None:
        self._device, self._bounce, self._arena = device, bounce, arena
        self._places = deque(range(ENDS))  # free places, the least recently used first
        self._used_places: set[int] = set()

    def take_place(self) -> int | None:
        """Return the place of an end's words, cleared to zero; None if none is free."""
        if not self._places:
            return None
        place = self._places.popleft()
        # The words of a new place are zero already; clearing them would make the host wait.
        if place in self._used_places:
            self._device.fill_zero(self.address(place), END_NBYTES)
        self._used_places.add(place)
        return place

    def address(self, place: int) -> int:
        """Return the address of the words at a place."""
        return end_address(self._bounce, place)

    def take_slots(self, nbytes: int) -> Slots:
        """Return two slots for messages of `nbytes` each."""
        stride = -(-max(nbytes, 1) // ALIGNMENT) * ALIGNMENT
        return Slots(self._arena.take(2 * stride), stride)

    def give_back(self, place: int, slots: Slots | None) -> None:
        """Return an end's place and slots to the free ones."""
        self._places.append(place)
        if slots is not None:
            self._arena.give_back(slots.piece)
