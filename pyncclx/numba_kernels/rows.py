"""Find the rows of Alltoallv to send, and where received rows are stored.

A kernel has these arrays of 64-bit integers in shared memory:

    sent[rank]      number of rows for the rank, and where they begin in sendbuf
    received[rank]  number of rows from the rank, where they belong in recvbuf, and how many fit
    headers         the ranks' headers: see `alltoallv`
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import device as d
from ..device.functions import declare
from ..failures.kernel_errors import BAD_COUNTS
from ..memory.parameters import PLACED, SENDER, SLOTS
from .exchange import cuda, inline

# Indices into a kernel's arguments: AlltoallvArgs of cuda/collectives/alltoallv.cu up to its `drop`.
SEND, RECV, ROW_NBYTES, SEND_ROWS, CAPACITY, SLOT_ROWS = range(6)
SEND_COUNTS, SEND_DISPLS, RECV_COUNTS, RECV_DISPLS, TOTAL, STATUS, PLACEMENT, DROP = range(6, 14)

CUT = 1  # kind of overflow: rows that did not fit
COUNT_BITS = 0xFFFFFFFF  # count in a header's first word, with layout="sender"

overflow = declare("pyncclx_numba_overflow", "int32(uint64, uint64, int32, int64, int64)")


@inline
def rows_to(args: Any, rank: int, size: int, call: int) -> tuple[int, int]:
    """Return how many rows to send a rank (0 if outside sendbuf), and their begin."""
    counts, displs = d.pointer(args[SEND_COUNTS], np.int64), d.pointer(args[SEND_DISPLS], np.int64)
    count, displ, limit = counts[rank], 0, args[SEND_ROWS]
    for other in range(size):  # over all ranks, so that the loads overlap
        number = max(counts[other], 0)
        displ += number if other < rank else 0
    if count == 0:
        displ = 0  # the caller's displacement may be anything
    elif args[SEND_DISPLS] != 0:
        displ = displs[rank]
    if count != 0 and (count < 0 or displ < 0 or displ > limit or count > limit - displ):
        if cuda.blockIdx.x == 0:
            overflow(call, BAD_COUNTS, rank, count, limit)
        count = 0
    return count, displ


@inline
def rows_from(args: Any, headers: Any, rank: int) -> tuple[int, int, int]:
    """Return the number of rows from a rank, where they are stored, and how many fit."""
    placement, capacity = args[PLACEMENT], args[CAPACITY]
    count = headers[rank, 0]
    if placement == SENDER:
        displ = (count >> 32) & COUNT_BITS
        count &= COUNT_BITS
        return count, rank * args[SLOT_ROWS] + displ, max(min(count, capacity - displ), 0)
    if placement == SLOTS:
        return count, rank * args[SLOT_ROWS], min(count, capacity)
    if placement == PLACED:
        displ = d.pointer(args[RECV_DISPLS], np.int64)[rank]
        return count, displ, 0 if displ < 0 else max(min(count, capacity - displ), 0)
    displ = 0
    for before in range(rank):
        displ += min(headers[before, 0], capacity - displ)
    return count, displ, min(count, capacity - displ)


@inline
def write_outputs(args: Any, received: Any, source: int, size: int, call: int) -> None:
    """Write the outputs about rows from a rank, as far as the caller passed arrays."""
    count, displ, kept = received[source, 0], received[source, 1], received[source, 2]
    if args[RECV_COUNTS] != 0:
        d.pointer(args[RECV_COUNTS], np.int64)[source] = kept
    if args[RECV_DISPLS] != 0 and args[PLACEMENT] != PLACED:
        d.pointer(args[RECV_DISPLS], np.int64)[source] = displ
    if args[STATUS] != 0:
        d.pointer(args[STATUS], np.int64)[source] = count - kept
    if kept < count and args[DROP] == 0:
        overflow(call, CUT, source, count, kept)
    if args[TOTAL] != 0 and source == 0:
        total = 0
        for rank in range(size):
            total += received[rank, 2]
        d.pointer(args[TOTAL], np.int64)[0] = total
