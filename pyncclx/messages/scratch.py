"""Host memory of messages that MPI transfers with their data."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

from ..backends import Device, Event
from .unsent import Unsent, Used

PINNED_NBYTES = 16 << 10  # the shortest message with pinned memory; 2 × H200, Open MPI over sockets, 2026-11-27
KEPT_NBYTES = 1 << 20  # of a piece that is used again
_MAX_EXTRA_NBYTES = 64 << 20  # room for messages that are longer than they should be
_FOR_ONE = 2  # copies that are asked when a piece is taken: more than one, so that those that are over become fewer


class Scratch:
    """Pieces of host memory that MPI receives into, used again and again; pinned, or ordinary.

    Attributes
    ----------
    is_read_later : bool
        Whether a copy from a piece may still read it when the call that enqueues the copy has returned.
    free : list of memoryview
        Pieces of KEPT_NBYTES, which have room for messages of half that.
    """

    def __init__(self, device: Device, unsent: Unsent, *, is_pinned: bool) -> None:
        self._device, self._unsent, self._is_pinned = device, unsent, is_pinned
        self.is_read_later = is_pinned or device.name == "host"
        self.free: list[memoryview] = []
        self._copied: deque[tuple[Event, memoryview]] = deque()  # with the end of the copy from each

    def take(self, nbytes: int) -> memoryview:
        """Return room for a message that may bring its data, and for a much longer one than it should be.

        That one is then refused here. Open MPI 5.0 writes all of it when it refuses it, past the end of the
        receiver's buffer. Pages of ordinary memory that are never written take none.
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
        return host_memory(self._device, nbytes, is_pinned=self._is_pinned).data  # costs less to slice than an array

    def give_back(self, piece: memoryview, copied: Event | None = None) -> None:
        """Keep a piece for another message, once what has been copied from it is over."""
        if len(piece) != KEPT_NBYTES:
            self.drop(piece, copied)
        elif copied is None:
            self.free.append(piece)
        else:
            self._copied.append((copied, piece))

    def drop(self, memory: Any, copied: Event | None = None) -> None:
        """Free memory that no other message uses, once what has been copied from it is over."""
        if copied is not None:
            self._unsent.keep_message(Used(copied, memory))

    def _reclaim(self) -> None:
        """Ask the next copies, wherever they are in the queue: one whose stream waits holds no other piece back."""
        for _ in range(_FOR_ONE):
            try:
                copied, piece = self._copied.popleft()
            except IndexError:  # another thread has taken it
                return
            self.give_back(piece, None if copied.is_over() else copied)


def host_memory(device: Device, nbytes: int, *, is_pinned: bool) -> npt.NDArray[np.uint8]:
    """Allocate host memory for a message; pinned, to and from which GPUs copy faster, from CuPy's pool."""
    if device.name == "host" or not is_pinned:
        return np.empty(nbytes, np.uint8)
    from ..staging import pinned  # noqa: PLC0415  needs CuPy, which host runs can do without

    return pinned.allocate(nbytes)
