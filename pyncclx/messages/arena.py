"""Memory of this process that others can open, in pieces: slots of channels, and ends of partitioned messages."""

from __future__ import annotations

from collections import defaultdict, deque
from typing import NamedTuple

from ..backends import Device, Event, Exported

ARENA_NBYTES = 1 << 20  # that is allocated at once; longer pieces are allocated alone
ALIGNMENT = 128


class Piece(NamedTuple):
    """A piece of an allocation, from `offset` on."""

    memory: Exported
    offset: int
    nbytes: int

    @property
    def address(self) -> int:
        """In this process."""
        return self.memory.address + self.offset


class Arena:
    """Allocations that last as long as the process, and their pieces.

    Attributes
    ----------
    nbytes : int
        Of all allocations.
    """

    def __init__(self, device: Device) -> None:
        self._device, self.nbytes = device, 0
        self._memory: Exported | None = None  # the last one that is cut into pieces
        self._used = ARENA_NBYTES  # of it
        # By their length, those that were given back first come first; with an event that their last use ends with.
        self._free: defaultdict[int, deque[tuple[Piece, Event | None]]] = defaultdict(deque)

    def take(self, nbytes: int) -> Piece:
        """Return a piece of some bytes, or a little more. Its contents are those of its last use."""
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
        """Return a piece that is all zero."""
        piece = self.take(nbytes)
        self._device.fill_zero(piece.address, piece.nbytes)
        return piece

    def _allocate(self, nbytes: int) -> Exported:
        self.nbytes += nbytes
        return self._device.allocate_exported(nbytes)

    def give_back(self, piece: Piece, last_use: Event | None = None) -> None:
        """Take a piece back; it is used again once the event is over."""
        self._free[piece.nbytes].append((piece, last_use))


class Pieces:
    """Pieces that one object has.

    Attributes
    ----------
    last_use : Event or None
        At the end of what uses them.
    """

    last_use: Event | None = None

    def __init__(self, arena: Arena) -> None:
        self._arena, self._pieces = arena, list[Piece]()

    def take(self, nbytes: int, *, zeroed: bool = False) -> Piece:
        """Take one more."""
        piece = self._arena.take_zeroed(nbytes) if zeroed else self._arena.take(nbytes)
        self._pieces.append(piece)
        return piece

    def give_back(self) -> None:
        """Give all of them back."""
        while self._pieces:
            self._arena.give_back(self._pieces.pop(), self.last_use)
