"""Host memory that MPI receives into, used again and again."""

from __future__ import annotations

import numpy as np

_NBYTES = 1 << 20  # of a piece that is kept
_MAX_EXTRA_NBYTES = 64 << 20  # room for messages that are longer than they should be


class Scratch:
    """Pieces of host memory."""

    def __init__(self) -> None:
        self._free: list[memoryview] = []

    def take(self, nbytes: int) -> memoryview:
        """Return room for a message that may bring its data, and for a much longer one than it should be.

        That one is then refused here. Open MPI 5.0 writes all of it when it refuses it, past the end of the
        receiver's buffer. Pages that are never written take no memory.
        """
        if 2 * nbytes > _NBYTES:
            return _allocate(nbytes + min(nbytes, _MAX_EXTRA_NBYTES))
        try:
            return self._free.pop()
        except IndexError:
            return _allocate(_NBYTES)

    def give_back(self, piece: memoryview) -> None:
        """Keep a piece for another message."""
        if len(piece) == _NBYTES:
            self._free.append(piece)


def _allocate(nbytes: int) -> memoryview:
    return np.empty(nbytes, np.uint8).data  # a view costs less to slice and to read than an array
