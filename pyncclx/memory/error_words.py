"""Words for errors of kernels (twin of `Watch` in cuda/protocol/layout.cuh)."""

from __future__ import annotations

from typing import NamedTuple

from ..backends import Watch


class ErrorWords(NamedTuple):
    """The 64-bit words of a `Watch`, in order."""

    # Set by the host to end the waits of kernels.
    abort: int
    # Set by a kernel whose wait failed, with the next six words.
    failure: int
    operation: int
    epoch: int
    channel: int
    peer: int
    expected: int
    seen: int
    # Set by a kernel that rejects numbers on the device, with the next three words.
    overflow: int
    source: int
    wanted: int
    capacity: int


NBYTES = 8 * len(ErrorWords._fields)
ABORT, FAILURE, OPERATION, EPOCH, PEER, OVERFLOW = map(
    ErrorWords._fields.index, ("abort", "failure", "operation", "epoch", "peer", "overflow")
)
TIMED_OUT, ABORTED, MISMATCH = 1, 2, 4  # Watch::failure
# Value of Watch::failure that the host sets when no kernel has recorded anything.
LOST = 3


def read(watch: Watch, dtype: str = "u8") -> ErrorWords:
    """Return the present values of the words."""
    return ErrorWords(*watch.array.view(dtype).tolist())
