"""Giving a message of any length to MPI, which may count no further than an int."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpi4py import MPI

_INT_MAX = (1 << 31) - 1
_BLOCK_NBYTES = 1 << 20


def begin(call: Callable[..., MPI.Request], comm: MPI.Comm, message: Any, rank: int, tag: int) -> MPI.Request:
    """Begin to send or receive bytes by a nonblocking method of mpi4py's communicators."""
    if len(message) <= _INT_MAX:
        return call(comm, [message, MPI.BYTE], rank, tag)
    blocks, rest = divmod(len(message), _BLOCK_NBYTES)
    block = MPI.BYTE.Create_contiguous(_BLOCK_NBYTES)
    whole = MPI.Datatype.Create_struct([blocks, rest], [0, len(message) - rest], [block, MPI.BYTE]).Commit()
    try:
        return call(comm, [message, 1, whole], rank, tag)
    finally:  # what has begun goes on
        block.Free()
        whole.Free()
