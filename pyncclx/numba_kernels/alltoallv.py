"""Alltoallv with counts on the device, written in Python: the twin of cuda/collectives/alltoallv.cu.

In the first turn every rank tells every peer how many rows it sends, and how long its longest message is. Short
messages follow at once, as packets in the same slot. From the longest message of all, every rank knows how many more
turns a block takes for long ones, which go chunk by chunk; all take as many, whatever they have to move themselves.

    out[rank]   rows for a rank, and where they begin           rows[rank]  rows of a rank, where they belong, and how
    tell[rank]  what the rank is told of it: the header                     many of them have room
    told[rank]  what the rank has told: its header              all of them in shared memory
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import cuda

from .. import device as d
from ..device.functions import declare
from ..memory.layout import MAX_RANKS
from ..memory.parameters import PLACED, SENDER, SLOTS
from ..team.kernel_errors import BAD_COUNTS
from .exchange import (
    after,
    chunks,
    inline,
    last_turn,
    leave,
    longest_chunk,
    longest_packets,
    meet,
    next_turn,
    packets,
    part_of,
    peer_of_warp,
    share_of,
)

CUT = 1  # Overflow: rows that did not fit
HEADER_NBYTES = 16  # what a message says of itself: rows, and where they were if the layout asks for that; the longest
COUNT_BITS = 0xFFFFFFFF  # of that word, with layout="sender"

overflow = declare("pyncclx_numba_overflow", "int32(uint64, uint64, int32, int64, int64)")


@inline
def row_to(args: Any, rank: int, size: int, call: int) -> tuple[int, int]:
    """Rows for a rank, and where they begin: as asked, but nothing outside of sendbuf."""
    counts, displs = d.pointer(args[6], np.int64), d.pointer(args[7], np.int64)
    count, displ = counts[rank], 0
    for other in range(size):  # all of them, so that the loads travel together
        number = max(counts[other], 0)
        displ += number if other < rank else 0
    if count == 0:
        displ = 0  # no rows have no place
    elif args[7] != 0:
        displ = displs[rank]
    if count != 0 and (count < 0 or displ < 0 or displ > args[3] or count > args[3] - displ):
        if cuda.blockIdx.x == 0:
            overflow(call, BAD_COUNTS, rank, count, args[3])
        count = 0
    return count, displ


@inline
def row_from(args: Any, told: Any, rank: int) -> tuple[int, int, int]:
    """Rows of a rank, where they belong, and how many of them have room there."""
    placement, capacity = args[12], args[4]
    count = told[rank, 0]
    if placement == SENDER:
        displ = (count >> 32) & COUNT_BITS
        count &= COUNT_BITS
        return count, rank * args[5] + displ, max(min(count, capacity - displ), 0)
    if placement == SLOTS:
        return count, rank * args[5], min(count, capacity)
    if placement == PLACED:
        displ = d.pointer(args[9], np.int64)[rank]
        return count, displ, 0 if displ < 0 else max(min(count, capacity - displ), 0)
    displ = 0
    for before in range(rank):
        displ += min(told[before, 0], capacity - displ)
    return count, displ, min(count, capacity - displ)


@inline
def write_outputs(args: Any, rows: Any, source: int, size: int, call: int) -> None:
    """For the caller: what came from a rank, where it is, and what did not fit; each where it is wanted."""
    count, displ, kept = rows[source, 0], rows[source, 1], rows[source, 2]
    if args[8] != 0:
        d.pointer(args[8], np.int64)[source] = kept
    if args[9] != 0 and args[12] != PLACED:
        d.pointer(args[9], np.int64)[source] = displ
    if args[11] != 0:
        d.pointer(args[11], np.int64)[source] = count - kept
    if kept < count and args[13] == 0:
        overflow(call, CUT, source, count, kept)
    if args[10] != 0 and source == 0:
        total = 0
        for rank in range(size):
            total += rows[rank, 2]
        d.pointer(args[10], np.int64)[0] = total


@inline
def stored(part: int, begin: int, kept: int) -> Any:
    """How much of a part, which begins at `begin` of a message, has room: `kept` bytes of the message have."""
    return max(min(part, kept - begin), 0)


@inline
def write_headers(args: Any, out: Any, tell: Any, told: Any, me: int, size: int) -> None:
    """What each rank is told: how many rows, for layout="sender" where they were, and this rank's longest message."""
    if cuda.threadIdx.x < size:
        rank, longest = cuda.threadIdx.x, 0
        for peer in range(size):
            if peer != me:
                longest = max(longest, out[peer, 0] * args[2])
        word = out[rank, 0]
        if args[12] == SENDER:
            word |= out[rank, 1] << 32
        tell[rank, 0], tell[rank, 1] = word, longest
        if rank == me:
            told[me, 0], told[me, 1] = word, longest


@inline
def is_short(nbytes: int, size: int) -> Any:
    """Whether a message goes as packets, behind its header."""
    return share_of(nbytes) <= longest_packets(size) - HEADER_NBYTES


@inline
def send_packets(team: int, work: int, turn: int, args: Any, out: Any, tell: Any, size: int) -> None:
    """A warp for each peer: the header, and the message if it is short."""
    me = d.rank(team)
    peer = peer_of_warp(me, size)
    if peer != me:
        slot, nbytes = packets(work, turn, me, size), out[peer, 0] * args[2]
        d.put_packets_warp(team, slot, d.address(tell) + peer * HEADER_NBYTES, HEADER_NBYTES, peer, turn)
        if is_short(nbytes, size):
            begin, part = part_of(nbytes)
            source = args[0] + out[peer, 1] * args[2] + begin
            d.put_packets_warp(team, slot + 2 * HEADER_NBYTES, source, part, peer, turn)


@inline
def receive_headers(team: int, work: int, turn: int, told: Any, size: int) -> Any:
    """All threads wait for what the peers tell. False: leave."""
    me, ok = d.rank(team), 1
    source = peer_of_warp(me, size)
    if source != me:
        header = d.address(told) + source * HEADER_NBYTES
        ok = d.receive_packets_warp(team, header, packets(work, turn, source, size), HEADER_NBYTES, turn)
    return cuda.syncthreads_and(ok) != 0


@inline
def receive_short(team: int, work: int, turn: int, args: Any, rows: Any, size: int) -> None:
    """The short messages, and not more of them than there is room for."""
    me = d.rank(team)
    source = peer_of_warp(me, size)
    nbytes = rows[source, 0] * args[2]
    if source != me and is_short(nbytes, size):
        begin, part = part_of(nbytes)
        to, slot = args[1] + rows[source, 1] * args[2] + begin, packets(work, turn, source, size)
        length = stored(part, begin, rows[source, 2] * args[2])
        d.receive_packets_warp(team, to, slot + 2 * HEADER_NBYTES, length, turn)


@inline
def put_chunks(team: int, work: int, turn: int, at: int, args: Any, out: Any, size: int) -> None:
    """What lies at `at` of this block's part of each long message, for every peer."""
    me = d.rank(team)
    for j in range(1, size):
        peer = after(me, j, size)
        nbytes = out[peer, 0] * args[2]
        begin, part = part_of(nbytes)
        if not is_short(nbytes, size) and at < part:
            source = args[0] + out[peer, 1] * args[2] + begin + at
            d.put_block(team, chunks(work, turn, me, size), source, min(longest_chunk(size), part - at), peer)


@inline
def take_chunks(team: int, work: int, turn: int, at: int, args: Any, rows: Any, size: int) -> None:
    """What the peers have put at `at`, as far as there is room for it."""
    me = d.rank(team)
    for j in range(1, size):
        source = after(me, j, size)
        nbytes = rows[source, 0] * args[2]
        begin, part = part_of(nbytes)
        if not is_short(nbytes, size) and at < part:
            length = stored(min(longest_chunk(size), part - at), begin + at, rows[source, 2] * args[2])
            to = args[1] + rows[source, 1] * args[2] + begin + at
            d.copy_block(to, chunks(work, turn, source, size), length)


@inline
def copy_own(args: Any, out: Any, rows: Any, me: int) -> None:
    """The rows that stay on this rank."""
    begin, part = part_of(rows[me, 0] * args[2])
    source = args[0] + out[me, 1] * args[2] + begin
    d.copy_block(args[1] + rows[me, 1] * args[2] + begin, source, stored(part, begin, rows[me, 2] * args[2]))


def alltoallv(size: int) -> Callable[..., None]:
    """Rows for every rank, as the counts in device memory say when the kernel runs."""

    def kernel(team: int, work: int, args: Any, call: int) -> None:
        me, thread = d.rank(team), cuda.threadIdx.x
        out, rows = cuda.shared.array((MAX_RANKS, 2), np.int64), cuda.shared.array((MAX_RANKS, 3), np.int64)
        tell, told = cuda.shared.array((MAX_RANKS, 2), np.int64), cuda.shared.array((MAX_RANKS, 2), np.int64)
        turn = next_turn(work, last_turn(work))
        if thread < size:
            out[thread, 0], out[thread, 1] = row_to(args, thread, size, call)
        cuda.syncthreads()
        write_headers(args, out, tell, told, me, size)
        cuda.syncthreads()
        send_packets(team, work, turn, args, out, tell, size)
        if receive_headers(team, work, turn, told, size):
            if thread < size:
                rows[thread, 0], rows[thread, 1], rows[thread, 2] = row_from(args, told, thread)
            cuda.syncthreads()
            source = cuda.blockDim.x - 1 - thread  # the last warp: the first have packets to take
            if cuda.blockIdx.x == 0 and source < size:
                write_outputs(args, rows, source, size, call)
            receive_short(team, work, turn, args, rows, size)
            copy_own(args, out, rows, me)
            longest = 0
            for rank in range(size):
                longest = max(longest, told[rank, 1])
            for at in range(0, 0 if is_short(longest, size) else share_of(longest), longest_chunk(size)):
                turn = next_turn(work, turn)
                put_chunks(team, work, turn, at, args, out, size)
                if not meet(team, turn, size):
                    break
                take_chunks(team, work, turn, at, args, rows, size)
        leave(work, turn)

    return kernel
