"""Specify a message's memory for MPI's transfer.

A message may be longer than an int can count, or than the receive buffer.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from mpi4py import MPI

import mpi_bootstrap

from ..system.process import PerProcess, held
from .envelope import ENVELOPE_NBYTES

# Bytes between an envelope and its data in the sender's memory. They are not sent.
GAP_NBYTES = 64 - ENVELOPE_NBYTES % 64
# Longest message sent in one part. Open MPI does not overrun the receive buffer with it; see `two_part_datatype`.
_SHORT_NBYTES = 1 << 10
_MOST_KEPT = 64  # datatypes
_INT_MAX = (1 << 31) - 1
_BLOCK_NBYTES = 1 << 20
#: A communicator of this process only. Hold `LOCK` until messages sent on it have been matched.
ITSELF = PerProcess(lambda: mpi_bootstrap.same_ranks(MPI.COMM_SELF), lasting=True)
# Cached datatypes, by the length of the message.
_KEPT: dict[int, MPI.Datatype] = held({})


def received_spec(memory: memoryview) -> tuple[list[Any], MPI.Datatype | None]:
    """Return mpi4py's specification of memory for a message of any length.

    Free the second item, if not None, once MPI has begun the receive.
    """
    return _spec(memory, None if len(memory) <= _INT_MAX else two_part_datatype(len(memory), 0))


def sent_spec(message: Any) -> tuple[list[Any], MPI.Datatype | None]:
    """Return mpi4py's specification of a message to send.

    An array has a gap of `GAP_NBYTES` after the first `ENVELOPE_NBYTES`, which is not sent. Free the second item, if
    not None, once MPI has begun the send.
    """
    if isinstance(message, np.ndarray) and len(message) <= _SHORT_NBYTES:
        message = bytes(message[:ENVELOPE_NBYTES]) + bytes(message[ENVELOPE_NBYTES + GAP_NBYTES :])
    if not isinstance(message, np.ndarray):
        return _spec(message, None if len(message) <= _INT_MAX else two_part_datatype(len(message), 0))
    known = _kept_datatype(len(message))
    return _spec(message, two_part_datatype(len(message))) if known is None else ([message, 1, known], None)


def _spec(memory: Any, datatype: MPI.Datatype | None) -> tuple[list[Any], MPI.Datatype | None]:
    return [memory, MPI.BYTE] if datatype is None else [memory, 1, datatype], datatype


def _kept_datatype(nbytes: int) -> MPI.Datatype | None:
    """Return the cached datatype for this length; None if the cache is full."""
    if nbytes not in _KEPT and len(_KEPT) < _MOST_KEPT:
        _KEPT[nbytes] = two_part_datatype(nbytes)
    return _KEPT.get(nbytes)


def two_part_datatype(nbytes: int, gap_nbytes: int = GAP_NBYTES) -> MPI.Datatype:
    """Create the datatype of an envelope and its data in `nbytes` of memory.

    Open MPI 5.0 copies a contiguous message of more than 4 KiB (1 KiB to the same process) in one piece, even if the
    receive buffer is too short. It reports the error after it has overwritten the receiver's heap. A device array's
    message is longer than the array, so this would affect receives into host arrays of the array's length. A message in
    two parts is copied piece by piece, up to the end of the buffer.
    """
    begin = ENVELOPE_NBYTES + gap_nbytes
    blocks, rest = divmod(nbytes - begin, _BLOCK_NBYTES)
    block = MPI.BYTE.Create_contiguous(_BLOCK_NBYTES)
    whole = MPI.Datatype.Create_struct(
        [ENVELOPE_NBYTES, blocks, rest], [0, begin, nbytes - rest], [MPI.BYTE, block, MPI.BYTE]
    )
    block.Free()
    return whole.Commit()
