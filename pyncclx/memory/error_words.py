"""The words in which kernels record what went wrong (twin of `Watch` in cuda/protocol/layout.cuh)."""

from __future__ import annotations

from typing import NamedTuple

from ..backends import Watch


class ErrorWords(NamedTuple):
    """The 64-bit words of a `Watch`, in their order."""

    abort: int  # set by the host: kernels leave their waits
    failure: int  # set by a kernel whose wait failed, with the next six
    operation: int
    epoch: int
    channel: int
    peer: int
    expected: int
    seen: int
    overflow: int  # set by a kernel that refuses numbers it was given on the device, with the last three
    source: int
    wanted: int
    capacity: int


NBYTES = 8 * len(ErrorWords._fields)
ABORT, FAILURE, OPERATION, EPOCH, PEER, OVERFLOW = map(
    ErrorWords._fields.index, ("abort", "failure", "operation", "epoch", "peer", "overflow")
)
TIMED_OUT, ABORTED, MISMATCH = 1, 2, 4  # Watch::failure
LOST = 3  # the same, set by the host: no kernel has recorded anything


def read(watch: Watch, dtype: str = "u8") -> ErrorWords:
    """Return the words as they are now."""
    return ErrorWords(*watch.array.view(dtype).tolist())
