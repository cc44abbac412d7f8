"""The memory that a process has for channels (`channels.py`): words of their ends in its bounce memory, and slots."""

from __future__ import annotations

from collections import defaultdict, deque
from typing import NamedTuple

from ..backends import Device, Exported
from .bounce import END_NBYTES, ENDS, end_address

_ARENA_NBYTES = 1 << 20  # of memory for slots, allocated as channels need it
_ALIGNMENT = 128


class Slots(NamedTuple):
    """Two slots of a channel: in exported memory, from `offset` on, and from one to the other."""

    memory: Exported
    offset: int
    stride: int

    @property
    def address(self) -> int:
        """Of the first."""
        return self.memory.address + self.offset


class ChannelMemory:
    """The words and slots that a process has for its ends of channels."""

    def __init__(self, device: Device, bounce: int) -> None:
        self._device, self._bounce = device, bounce
        self._places = deque(range(ENDS))  # those that were used longest ago come first
        self._used_places: set[int] = set()
        self._arenas: list[Exported] = []
        self._used = _ARENA_NBYTES  # of the last one
        self._free: defaultdict[int, list[Slots]] = defaultdict(list)  # by their stride

    @property
    def nbytes(self) -> int:
        """Of the memory for slots."""
        return len(self._arenas) * _ARENA_NBYTES

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
        stride = -(-max(nbytes, 1) // _ALIGNMENT) * _ALIGNMENT
        if self._free[stride]:
            return self._free[stride].pop()
        if self._used + 2 * stride > _ARENA_NBYTES:
            self._arenas.append(self._device.allocate_exported(_ARENA_NBYTES))
            self._used = 0
        self._used += 2 * stride
        return Slots(self._arenas[-1], self._used - 2 * stride, stride)

    def give_back(self, place: int, slots: Slots | None) -> None:
        """Take back what an end has had."""
        self._places.append(place)
        if slots is not None:
            self._free[slots.stride].append(slots)
