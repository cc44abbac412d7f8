"""Giving a message to MPI, which may count no further than an int, and may write past the end of a short buffer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from .envelope import ENVELOPE_NBYTES

GAP = 64 - ENVELOPE_NBYTES % 64  # bytes between an envelope and its data in the sender's memory, which are not sent
_INT_MAX = (1 << 31) - 1
_BLOCK_NBYTES = 1 << 20


def begin(call: Callable[..., MPI.Request], comm: MPI.Comm, message: Any, rank: int, tag: int) -> MPI.Request:
    """Begin to send or receive bytes by a nonblocking method of mpi4py's communicators."""
    if len(message) <= _INT_MAX:
        return call(comm, [message, MPI.BYTE], rank, tag)
    return _begin(call, comm, message, parted(len(message), 0), rank, tag)


def begin_to_send(call: Callable[..., MPI.Request], comm: MPI.Comm, message: Any, rank: int, tag: int) -> MPI.Request:
    """Begin to send an envelope, or one with its data: an array with `GAP` bytes between them."""
    if isinstance(message, bytes):
        return call(comm, [message, MPI.BYTE], rank, tag)
    return _begin(call, comm, message, parted(len(message)), rank, tag)


def parted(nbytes: int, gap: int = GAP) -> MPI.Datatype:
    """The datatype of an envelope and its data in `nbytes` of memory.

    Open MPI 5.0 copies a contiguous message of more than 4 KiB, or 1 KiB to the same process, at once and whole, even
    to a buffer that is too short, and then refuses it: the receiver's heap is damaged. A device array's message is
    longer than the array, so it happened to host arrays of the same length. A message in two parts goes piece by piece,
    as far as there is room.
    """
    begin = ENVELOPE_NBYTES + gap
    blocks, rest = divmod(nbytes - begin, _BLOCK_NBYTES)
    block = MPI.BYTE.Create_contiguous(_BLOCK_NBYTES)
    whole = MPI.Datatype.Create_struct(
        [ENVELOPE_NBYTES, blocks, rest], [0, begin, nbytes - rest], [MPI.BYTE, block, MPI.BYTE]
    )
    block.Free()
    return whole.Commit()


def _begin(
    call: Callable[..., MPI.Request], comm: MPI.Comm, message: Any, datatype: MPI.Datatype, rank: int, tag: int
) -> MPI.Request:
    try:
        return call(comm, [message, 1, datatype], rank, tag)
    finally:  # what has begun goes on
        datatype.Free()
