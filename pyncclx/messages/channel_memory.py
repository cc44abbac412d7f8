"""The memory that a process has for channels (`channels.py`): words of their ends in its bounce memory, and slots."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from ..backends import Device, Exported
from .arena import ALIGNMENT, Arena, Piece
from .bounce import END_NBYTES, ENDS, end_address


class Slots(NamedTuple):
    """Two slots of a channel: a piece of exported memory, and from one to the other."""

    piece: Piece
    stride: int

    @property
    def memory(self) -> Exported:
        """That they are in."""
        return self.piece.memory

    @property
    def offset(self) -> int:
        """Of the first in that memory."""
        return self.piece.offset

    @property
    def address(self) -> int:
        """Of the first."""
        return self.piece.address


class ChannelMemory:
    """The words and slots that a process has for its ends of channels."""

    def __init__(self, device: Device, bounce: int, arena: Arena) -> None:
        self._device, self._bounce, self._arena = device, bounce, arena
        self._places = deque(range(ENDS))  # those that were used longest ago come first
        self._used_places: set[int] = set()

    def take_place(self) -> int | None:
        """Return the place of the words of an end, which are zero; None if all are taken."""
        if not self._places:
            return None
        place = self._places.popleft()
        if place in self._used_places:  # else they have been zero from the beginning, and the host need not wait
            self._device.fill_zero(self.address(place), END_NBYTES)
        self._used_places.add(place)
        return place

    def address(self, place: int) -> int:
        """Return the address of its words."""
        return end_address(self._bounce, place)

    def take_slots(self, nbytes: int) -> Slots:
        """Return two slots for messages of some bytes."""
        stride = -(-max(nbytes, 1) // ALIGNMENT) * ALIGNMENT
        return Slots(self._arena.take(2 * stride), stride)

    def give_back(self, place: int, slots: Slots | None) -> None:
        """Take back what an end has had."""
        self._places.append(place)
        if slots is not None:
            self._arena.give_back(slots.piece)
