"""Host memory for messages whose data MPI transfers."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

from ...backends import Device, Event
from ..progress import Kept
from ..progress.pending_sends import PendingSends

# Shortest message for pinned memory (measured on 2 × H200, Open MPI over sockets, 2026-11-27).
PINNED_NBYTES = 16 << 10
# Size of reused pieces.
KEPT_NBYTES = 1 << 20
# Most extra memory of a piece, for messages that are too long.
_MAX_EXTRA_NBYTES = 64 << 20
# Number of copies that are tested when a piece is taken. With more than one, finished copies do not accumulate.
_FOR_ONE = 2


class Scratch:
    """Pool of pieces of host memory that MPI receives into, pinned or pageable.

    Attributes
    ----------
    is_read_later : bool
        Whether a copy may read its piece after the call that has enqueued the copy.
    free : list of memoryview
        Unused pieces of KEPT_NBYTES, each for messages of up to half that.
    """

    def __init__(self, device: Device, pending_sends: PendingSends, *, is_pinned: bool) -> None:
        self._device, self._pending_sends, self._is_pinned = device, pending_sends, is_pinned
        self.is_read_later = is_pinned or device.name == "host"
        self.free: list[memoryview] = []
        # Pieces that a copy may still read, each with the event after the copy.
        self._copied: deque[tuple[Event, memoryview]] = deque()

    def take(self, nbytes: int) -> memoryview:
        """Return memory for a message of `nbytes` that can hold a much longer one.

        If a message is too long, Open MPI 5.0 reports an error but writes the whole message, past the end of the
        buffer. With the extra memory MPI can receive it, and this library raises the error. Pageable memory that is
        never written uses no pages.
        """
        if self._copied:
            self._reclaim()
        if 2 * nbytes > KEPT_NBYTES:
            return self._allocate(nbytes + min(nbytes, _MAX_EXTRA_NBYTES))
        try:
            return self.free.pop()
        except IndexError:
            return self._allocate(KEPT_NBYTES)

    def _allocate(self, nbytes: int) -> memoryview:
        # A memoryview costs less to slice than an array.
        return host_memory(self._device, nbytes, is_pinned=self._is_pinned).data

    def give_back(self, piece: memoryview, copied: Event | None = None) -> None:
        """Reuse a piece after the copy from it has ended."""
        if len(piece) != KEPT_NBYTES:
            self.drop(piece, copied)
        elif copied is None:
            self.free.append(piece)
        else:
            self._copied.append((copied, piece))

    def drop(self, memory: Any, copied: Event | None = None) -> None:
        """Free memory after the copy from it has ended."""
        if copied is not None:
            self._pending_sends.keep_message(Kept(copied.is_over, memory))

    def _reclaim(self) -> None:
        """Test the queue's next copies, and reuse the pieces of those that have ended.

        The others go to the end of the queue, so a copy whose stream waits delays no other piece.
        """
        for _ in range(_FOR_ONE):
            try:
                copied, piece = self._copied.popleft()
            # Another thread has taken the piece.
            except IndexError:
                return
            self.give_back(piece, None if copied.is_over() else copied)


def host_memory(device: Device, nbytes: int, *, is_pinned: bool) -> npt.NDArray[np.uint8]:
    """Allocate host memory for a message.

    Pinned memory is from CuPy's pool, and GPUs copy to and from it faster.
    """
    if device.name == "host" or not is_pinned:
        return np.empty(nbytes, np.uint8)
    from ...staging import pinned  # noqa: PLC0415  needs CuPy, which may be missing on hosts without GPUs

    return pinned.allocate(nbytes)
