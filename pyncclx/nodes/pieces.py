"""Pieces of transfers for MPI, in their own or in pinned host memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from mpi4py import MPI

from ..backends import Device, Event
from .engine import Transfer

PIECE_NBYTES = 1 << 20  # longest piece in pinned memory; not measured
AT_ONCE = 4  # pieces of one peer that have pinned memory at a time

#: Starts a piece in MPI; returns None if its message has not arrived.
Begin = Callable[[Any], "MPI.Request | None"]


class _Queue:
    """Order of the pieces to or from one peer, and a limit on their pinned memory.

    Pieces begin in the order in which they joined. At most `AT_ONCE` of them have pinned memory at a time.
    """

    def __init__(self) -> None:
        self.length, self.begun, self.free = 0, 0, AT_ONCE

    def join(self) -> int:
        """Return the number of a new piece."""
        self.length += 1
        return self.length - 1


class PieceOfTransfer:
    """A part of a transfer that MPI moves as one message, in place."""

    def __init__(self, peer: int, address: int, nbytes: int, queue: _Queue, *, receives: bool) -> None:
        self.peer, self.nbytes, self.receives = peer, nbytes, receives
        self.host_address = address
        self._queue, self._number = queue, queue.join()
        self._request: MPI.Request | None = None
        self._is_asking = False  # true during a call of MPI: an exception may then lose MPI's request

    def advance(self, begin: Begin) -> bool:
        """Advance as far as possible without waiting; return True when it has ended."""
        return self._is_begun(begin) and self.is_moved()

    def _is_begun(self, begin: Begin) -> bool:
        queue = self._queue
        if self._request is None and queue.begun == self._number:
            self._is_asking = True
            try:
                self._request = begin(self)
            except MPI.Exception:  # MPI has begun nothing
                self._is_asking = False
                raise
            self._is_asking = False
            queue.begun += self._request is not None
        return self._request is not None

    def is_moved(self) -> bool:
        """Return whether MPI does not use the piece's memory, before or after the move."""
        return not self._is_asking if self._request is None else self._request.Test()


class PinnedPiece(PieceOfTransfer):
    """A part of a transfer that is copied through pinned host memory."""

    def __init__(
        self, peer: int, address: int, nbytes: int, queue: _Queue, *, receives: bool, device: Device, stream: Any
    ) -> None:
        super().__init__(peer, 0, nbytes, queue, receives=receives)
        self._address, self._device, self._stream = address, device, stream
        self._memory: Any = None
        self._copied: Event | None = None

    def advance(self, begin: Begin) -> bool:
        """Advance the message and the copy without waiting; return True when both ended."""
        if self._memory is None and not self._take_memory():
            return False
        if not self.receives:
            over = self._is_copied() and self._is_begun(begin) and self.is_moved()
        else:
            over = self._copied is not None or (self._is_begun(begin) and self.is_moved())
            if over and self._copied is None:
                self._copy(self._address, self.host_address)
            over = over and self._is_copied()
        if over:
            self._memory = None
            self._queue.free += 1
        return over

    def _take_memory(self) -> bool:
        if not self._queue.free:
            return False
        self._queue.free -= 1
        self._memory = _allocate(self.nbytes)
        self.host_address = MPI.Get_address(self._memory)
        if not self.receives:
            self._copy(self.host_address, self._address)
        return True

    def _copy(self, to: int, source: int) -> None:
        self._device.copy(to, source, self.nbytes, self._stream)
        self._copied = self._device.event()
        self._copied.record(self._stream)

    def _is_copied(self) -> bool:
        return self._copied is not None and self._copied.is_over()


def _allocate(nbytes: int) -> Any:
    from ..staging import pinned  # noqa: PLC0415  needs CuPy, which host runs can do without

    return pinned.allocate(nbytes)


def pieces_of(
    transfers: Iterable[Transfer], device: Device | None, stream: Any, *, receives: bool
) -> Iterator[PieceOfTransfer]:
    """Yield the pieces of transfers; with a `device`, in pinned memory.

    Copies run on `stream`.
    """
    queues: dict[int, _Queue] = {}
    for peer, address, nbytes in transfers:
        queue = queues.setdefault(peer, _Queue())
        if device is None:
            yield PieceOfTransfer(peer, address, nbytes, queue, receives=receives)
            continue
        for begin in range(0, nbytes, PIECE_NBYTES):
            length = min(PIECE_NBYTES, nbytes - begin)
            yield PinnedPiece(peer, address + begin, length, queue, receives=receives, device=device, stream=stream)
