"""Pieces of exported memory, for channels' slots and ends of partitioned messages."""

from __future__ import annotations

from collections import defaultdict, deque
from typing import NamedTuple

from ...backends import Device, Event, Exported

# Length of an allocation that is cut into pieces. Longer pieces are separate allocations.
ARENA_NBYTES = 1 << 20
ALIGNMENT = 128


class Piece(NamedTuple):
    """A part of an allocation, which begins at `offset`."""

    memory: Exported
    offset: int
    nbytes: int

    @property
    def address(self) -> int:
        """The piece's address in this process."""
        return self.memory.address + self.offset


class Arena:
    """Allocations that last as long as the process, cut into pieces.

    Attributes
    ----------
    nbytes : int
        Total size of the allocations.
    """

    def __init__(self, device: Device) -> None:
        self._device, self.nbytes = device, 0
        self._memory: Exported | None = None  # the newest allocation of ARENA_NBYTES
        self._used = ARENA_NBYTES  # bytes of `_memory` in use
        # Free pieces by length, each with the event at the end of its last use, the oldest first.
        self._free: defaultdict[int, deque[tuple[Piece, Event | None]]] = defaultdict(deque)

    def take(self, nbytes: int) -> Piece:
        """Return a piece of at least `nbytes`, with undefined contents."""
        nbytes = -(-max(nbytes, 1) // ALIGNMENT) * ALIGNMENT
        free = self._free[nbytes]
        for _ in range(len(free)):
            piece, last_use = free.popleft()
            if last_use is None or last_use.is_over():
                return piece
            free.append((piece, last_use))
        if nbytes > ARENA_NBYTES:
            return Piece(self._allocate(nbytes), 0, nbytes)
        if self._memory is None or self._used + nbytes > ARENA_NBYTES:
            self._memory, self._used = self._allocate(ARENA_NBYTES), 0
        self._used += nbytes
        return Piece(self._memory, self._used - nbytes, nbytes)

    def take_zeroed(self, nbytes: int) -> Piece:
        """Return a zeroed piece of at least `nbytes`."""
        piece = self.take(nbytes)
        self._device.fill_zero(piece.address, piece.nbytes)
        return piece

    def _allocate(self, nbytes: int) -> Exported:
        self.nbytes += nbytes
        return self._device.allocate_exported(nbytes)

    def give_back(self, piece: Piece, last_use: Event | None = None) -> None:
        """Return a piece to the arena, which reuses it once the event has ended."""
        self._free[piece.nbytes].append((piece, last_use))


class Pieces:
    """Pieces of an arena that one object holds.

    Attributes
    ----------
    last_use : Event or None
        Recorded at the end of the work that uses them.
    """

    last_use: Event | None = None

    def __init__(self, arena: Arena) -> None:
        self._arena, self._pieces = arena, list[Piece]()

    def take(self, nbytes: int, *, zeroed: bool = False) -> Piece:
        """Return one more piece, which this object holds."""
        piece = self._arena.take_zeroed(nbytes) if zeroed else self._arena.take(nbytes)
        self._pieces.append(piece)
        return piece

    def give_back(self) -> None:
        """Return all pieces to the arena."""
        while self._pieces:
            self._arena.give_back(self._pieces.pop(), self.last_use)
