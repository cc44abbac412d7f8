"""Transfers in pieces, as MPI is given them: where the memory is, or through pinned memory of the host."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from mpi4py import MPI

from ..backends import Device, Event
from .engine import Transfer

PIECE_NBYTES = 1 << 20  # of pinned memory; not measured
AT_ONCE = 4  # pieces of one peer that have pinned memory at a time


class PieceOfTransfer:
    """A part of a transfer that MPI moves as one message, directly from or to its memory."""

    def __init__(self, peer: int, address: int, nbytes: int, *, receives: bool) -> None:
        self.peer, self.nbytes, self.receives = peer, nbytes, receives
        self.host_address = address
        self._request: MPI.Request | None = None

    def advance(self, begin: Callable[[Any], MPI.Request]) -> bool:
        """Go on as far as possible without a wait; True when it is over. `begin` gives it to MPI."""
        if self._request is None:
            self._request = begin(self)
        return self._request.Test()


class _Queue:
    """The pieces that go to one peer, or come from it: they begin in order, and a few have pinned memory at a time."""

    def __init__(self, device: Device, stream: Any) -> None:
        self.device, self.stream = device, stream
        self.length, self.begun, self.free = 0, 0, AT_ONCE

    def join(self) -> int:
        """Return the number of a new piece."""
        self.length += 1
        return self.length - 1


class PinnedPiece(PieceOfTransfer):
    """A part of a transfer between device memory and MPI, which goes through pinned memory."""

    def __init__(self, peer: int, address: int, nbytes: int, *, receives: bool, queue: _Queue) -> None:
        super().__init__(peer, 0, nbytes, receives=receives)
        self._address, self._queue, self._number = address, queue, queue.join()
        self._memory: Any = None
        self._copied: Event | None = None

    def advance(self, begin: Callable[[Any], MPI.Request]) -> bool:
        """As that of any piece."""
        if self._memory is None and not self._take_memory():
            return False
        if self._request is None:
            # messages with one peer go in order: a piece begins after those before it
            if self._queue.begun < self._number or (self._copied is not None and not self._copied.is_over()):
                return False
            self._request, self._queue.begun = begin(self), self._number + 1
            self._copied = None
        if self._copied is None:
            if not self._request.Test():
                return False
            if not self.receives:
                return self._release()
            self._copy(self._address, self.host_address)
        return self._copied is not None and self._copied.is_over() and self._release()

    def _take_memory(self) -> bool:
        if not self._queue.free:
            return False
        self._queue.free -= 1
        self._memory = _allocate(self.nbytes)
        self.host_address = self._memory.ctypes.data
        if not self.receives:
            self._copy(self.host_address, self._address)
        return True

    def _copy(self, to: int, source: int) -> None:
        device, stream = self._queue.device, self._queue.stream
        device.copy(to, source, self.nbytes, stream)
        self._copied = device.event()
        self._copied.record(stream)

    def _release(self) -> bool:
        self._memory = None
        self._queue.free += 1
        return True


def _allocate(nbytes: int) -> Any:
    from ..staging import pinned  # noqa: PLC0415  needs CuPy, which host runs can do without

    return pinned.allocate(nbytes)


def pieces_of(
    transfers: Iterable[Transfer], device: Device | None, stream: Any, *, receives: bool
) -> Iterator[PieceOfTransfer]:
    """Yield the pieces of transfers, through pinned memory of a device if there is one, with copies on `stream`."""
    queues: dict[int, _Queue] = {}
    for peer, address, nbytes in transfers:
        if device is None:
            yield PieceOfTransfer(peer, address, nbytes, receives=receives)
            continue
        queue = queues.setdefault(peer, _Queue(device, stream))
        for begin in range(0, nbytes, PIECE_NBYTES):
            length = min(PIECE_NBYTES, nbytes - begin)
            yield PinnedPiece(peer, address + begin, length, receives=receives, queue=queue)
