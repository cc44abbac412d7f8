"""Starting MPI's transfer of a message, which may be longer than an int counts or than the buffer that receives it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

from ..system.process import PerProcess, held
from .envelope import ENVELOPE_NBYTES

GAP_NBYTES = 64 - ENVELOPE_NBYTES % 64  # between an envelope and its data in the sender's memory; not sent
_SHORT_NBYTES = 1 << 10  # the longest in one part, of which Open MPI writes no more than there is room for: see below
_MOST_KEPT = 64  # datatypes
_INT_MAX = (1 << 31) - 1
_BLOCK_NBYTES = 1 << 20
#: A communicator of this process alone. Hold `LOCK` until what was sent on it has been matched.
ITSELF = PerProcess(MPI.COMM_SELF.Dup, lasting=True)
_KEPT: dict[int, MPI.Datatype] = held({})  # by the length of the message


def start_receive(comm: MPI.Comm, source: int, tag: int, memory: memoryview) -> MPI.Request:
    """Start to receive bytes, however many."""
    if len(memory) <= _INT_MAX:
        return MPI.Comm.Irecv(comm, [memory, MPI.BYTE], source, tag)
    return _start(MPI.Comm.Irecv, comm, source, tag, memory, two_part_datatype(len(memory), 0))


def start_send(call: Callable[..., MPI.Request], comm: MPI.Comm, dest: int, tag: int, message: Any) -> MPI.Request:
    """Start to send bytes, or an array with `GAP_NBYTES` behind the first `ENVELOPE_NBYTES`, which are not sent.

    `call` is `MPI.Comm.Isend` or `MPI.Comm.Issend`.
    """
    if isinstance(message, np.ndarray) and len(message) <= _SHORT_NBYTES:
        message = bytes(message[:ENVELOPE_NBYTES]) + bytes(message[ENVELOPE_NBYTES + GAP_NBYTES :])
    if not isinstance(message, np.ndarray):
        if len(message) <= _INT_MAX:
            return call(comm, [message, MPI.BYTE], dest, tag)
        return _start(call, comm, dest, tag, message, two_part_datatype(len(message), 0))
    known = _kept_datatype(len(message))
    if known is not None:
        return call(comm, [message, 1, known], dest, tag)
    return _start(call, comm, dest, tag, message, two_part_datatype(len(message)))


def _kept_datatype(nbytes: int) -> MPI.Datatype | None:
    """Return the datatype of an envelope and its data, kept for messages of this length; None if too many are."""
    if nbytes not in _KEPT and len(_KEPT) < _MOST_KEPT:
        _KEPT[nbytes] = two_part_datatype(nbytes)
    return _KEPT.get(nbytes)


def two_part_datatype(nbytes: int, gap_nbytes: int = GAP_NBYTES) -> MPI.Datatype:
    """Make the datatype of an envelope and its data in `nbytes` of memory.

    Open MPI 5.0 copies a contiguous message of more than 4 KiB, or 1 KiB to the same process, at once and whole, even
    to a buffer that is too short, and then refuses it: the receiver's heap is damaged. A device array's message is
    longer than the array, so it happened to host arrays of the same length. A message in two parts goes piece by piece,
    as far as there is room.
    """
    begin = ENVELOPE_NBYTES + gap_nbytes
    blocks, rest = divmod(nbytes - begin, _BLOCK_NBYTES)
    block = MPI.BYTE.Create_contiguous(_BLOCK_NBYTES)
    whole = MPI.Datatype.Create_struct(
        [ENVELOPE_NBYTES, blocks, rest], [0, begin, nbytes - rest], [MPI.BYTE, block, MPI.BYTE]
    )
    block.Free()
    return whole.Commit()


def _start(
    call: Callable[..., MPI.Request], comm: MPI.Comm, rank: int, tag: int, memory: Any, datatype: MPI.Datatype
) -> MPI.Request:
    try:
        return call(comm, [memory, 1, datatype], rank, tag)
    finally:  # a transfer that has started goes on
        datatype.Free()
