"""The pools of places in the bounce memory (see `bounce.py`)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from ...backends import Device, Exported
from ...system.process import lock

# Number of offered messages between two sweeps. A sweep closes exports of messages that have ended, which may hold
# memory.
_SWEEP = 32
ENDS = 2048  # number of channel ends
END_NBYTES = 32


class Places:
    """A range of places, and the messages that hold them. All threads may use it."""

    def __init__(self, first: int, number: int, done_words: Callable[[int, int], tuple[int, ...]]) -> None:
        self._first, self._number, self._done_words = first, number, done_words
        self._free = deque(range(first, first + number))
        # For each place in use: clock of its message, its export, number of the receiver.
        self._held: dict[int, tuple[int, Exported | None, int]] = {}
        self._lock = lock()

    def take(self, clock: int, number: int, exported: Exported | None = None) -> int | None:
        """Return a free place for a message to a rank; None if there is none.

        `exported` stays open until the message has ended.
        """
        with self._lock:
            if not self._free or (exported is not None and len(self._held) % _SWEEP == _SWEEP - 1):
                self._sweep()
            if not self._free:
                return None
            place = self._free[0]
            # Record the place as held before removing it from the free ones, so that an exception cannot lose it.
            self._held[place] = clock, exported, number
            del self._free[0]
            return place

    def place_of(self, clock: int) -> int | None:
        """Return the place of the message with a clock; None if it has none."""
        with self._lock:
            return next((place for place, held in self._held.items() if held[0] == clock), None)

    def held_for(self, number: int) -> list[tuple[int, int]]:
        """Return place and clock of each unfinished message to a rank.

        `number` identifies the rank (`Peers.numbers`).
        """
        with self._lock:
            self._sweep()
            return [(place, clock) for place, (clock, _, each) in self._held.items() if each == number]

    def _sweep(self) -> None:
        """Free the places whose messages have ended."""
        done = self._done_words(self._first, self._number)
        for place, (clock, exported, _) in list(self._held.items()):
            if done[place - self._first] == clock:
                del self._held[place]
                self._free.append(place)
                if exported is not None:
                    exported.close()


class EndPlaces:
    """The places of channel ends, whose words begin at `address`."""

    def __init__(self, device: Device, address: int) -> None:
        self._device, self._address = device, address
        self._free = deque(range(ENDS))  # the least recently used first
        self._used: set[int] = set()

    def take(self) -> int | None:
        """Return the place of an end's words, cleared to zero; None if none is free."""
        if not self._free:
            return None
        place = self._free.popleft()
        # The words of an unused place are already zero; clearing them would make the host wait.
        if place in self._used:
            self._device.fill_zero(self.address(place), END_NBYTES)
        self._used.add(place)
        return place

    def address(self, place: int) -> int:
        """Return the address of the words at a place."""
        return self._address + END_NBYTES * place

    def give_back(self, place: int) -> None:
        """Add a place to the free ones."""
        self._free.append(place)
