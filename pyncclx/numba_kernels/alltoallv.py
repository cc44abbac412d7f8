"""Alltoallv with counts on the device: twin of cuda/collectives/alltoallv.cu.

In the first turn every rank sends every peer a *header*: the number of rows for it, and the length of the rank's
longest message. Short messages follow in the same turn, as packets in the same slot. Long messages are sent chunk by
chunk in further turns. Every rank computes the number of turns from the longest message of all ranks, so the number is
the same on all ranks.

A kernel has these arrays of 64-bit integers in shared memory:

    sent[rank]      number of rows for the rank, and where they begin in sendbuf
    received[rank]  number of rows from the rank, where they belong in recvbuf, and how many fit
    headers         the ranks' headers
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .. import device as d
from ..device.functions import declare
from ..failures.kernel_errors import BAD_COUNTS
from ..memory.layout import MAX_RANKS
from ..memory.parameters import PLACED, SENDER, SLOTS
from . import exchange as ex
from .exchange import cuda, inline

# Indices into a kernel's arguments: AlltoallvArgs of cuda/collectives/alltoallv.cu up to its `drop`.
SEND, RECV, ROW_NBYTES, SEND_ROWS, CAPACITY, SLOT_ROWS = range(6)
SEND_COUNTS, SEND_DISPLS, RECV_COUNTS, RECV_DISPLS, TOTAL, STATUS, PLACEMENT, DROP = range(6, 14)

CUT = 1  # kind of overflow: rows that did not fit
COUNT_BITS = 0xFFFFFFFF  # count in a header's first word, with layout="sender"

overflow = declare("pyncclx_numba_overflow", "int32(uint64, uint64, int32, int64, int64)")
# Two words: the number of rows, and the bytes of the longest message. With layout="sender" the upper half of the first
# word has the index of the first row at the sender.
HEADER_NBYTES = 16


@inline
def rows_to(args: Any, rank: int, size: int, call: int) -> tuple[int, int]:
    """Return how many rows a rank gets (0 if outside sendbuf), and where they begin."""
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
    """Write the outputs about rows from a rank to the arrays that the caller passed."""
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


def alltoallv(size: int) -> Callable[..., None]:
    """Return a kernel that sends rows to every rank, by counts in device memory."""

    def kernel(team: int, work: int, args: Any, call: int) -> None:
        me, thread = d.rank(team), cuda.threadIdx.x
        sent, received = cuda.shared.array((MAX_RANKS, 2), np.int64), cuda.shared.array((MAX_RANKS, 3), np.int64)
        headers_to, headers = cuda.shared.array((MAX_RANKS, 2), np.int64), cuda.shared.array((MAX_RANKS, 2), np.int64)
        turn = ex.next_turn(work, ex.last_turn(work))
        if thread < size:
            sent[thread, 0], sent[thread, 1] = rows_to(args, thread, size, call)
        cuda.syncthreads()
        write_headers(args, sent, headers_to, headers, me, size)
        cuda.syncthreads()
        send_packets(team, work, turn, args, sent, headers_to, size)
        if receive_headers(team, work, turn, headers, size):
            if thread < size:
                received[thread, 0], received[thread, 1], received[thread, 2] = rows_from(args, headers, thread)
            cuda.syncthreads()
            source = cuda.blockDim.x - 1 - thread  # the last warp, because the first warps receive packets
            if cuda.blockIdx.x == 0 and source < size:
                write_outputs(args, received, source, size, call)
            receive_short(team, work, turn, args, received, size)
            copy_own(args, sent, received, me)
            for at in range(0, long_nbytes(headers, size), ex.longest_chunk(size)):
                turn = ex.next_turn(work, turn)
                put_long(team, work, turn, at, args, sent, size)
                if not ex.meet(team, turn, size):
                    break
                take_long(team, work, turn, at, args, received, size)
        ex.leave(work, turn)

    return kernel


# Headers


@ex.inline
def write_headers(args: Any, sent: Any, headers_to: Any, headers: Any, me: int, size: int) -> None:
    """Write the header for each rank; store this rank's own as received."""
    if cuda.threadIdx.x < size:
        rank, longest = cuda.threadIdx.x, 0
        for peer in range(size):
            if peer != me:
                longest = max(longest, sent[peer, 0] * args[ROW_NBYTES])
        word = sent[rank, 0]
        if args[PLACEMENT] == SENDER:
            word |= sent[rank, 1] << 32
        headers_to[rank, 0], headers_to[rank, 1] = word, longest
        if rank == me:
            headers[me, 0], headers[me, 1] = word, longest


@ex.inline
def receive_headers(team: int, work: int, turn: int, headers: Any, size: int) -> Any:
    """Wait for the peers' headers, with all threads; return False if a wait failed."""
    me, ok = d.rank(team), 1
    source = ex.peer_of_warp(me, size)
    if source != me:
        header = d.address(headers) + source * HEADER_NBYTES
        ok = d.receive_packets_warp(team, header, ex.packets(work, turn, source, size), HEADER_NBYTES, turn)
    return cuda.syncthreads_and(ok) != 0


# Messages


@ex.inline
def is_short(nbytes: int, size: int) -> Any:
    """Return whether a message is sent as packets, behind its header."""
    return ex.share_of(nbytes) <= ex.longest_packets(size) - HEADER_NBYTES


@ex.inline
def long_nbytes(headers: Any, size: int) -> Any:
    """Return the largest part of the longest message; 0 if it is sent as packets."""
    longest = 0
    for rank in range(size):
        longest = max(longest, headers[rank, 1])
    return 0 if is_short(longest, size) else ex.share_of(longest)


@ex.inline
def stored(part: int, begin: int, kept: int) -> Any:
    """Return how many bytes of a part fit if the first `kept` of its message fit.

    The part begins at byte `begin` of the message.
    """
    return max(min(part, kept - begin), 0)


@ex.inline
def send_packets(team: int, work: int, turn: int, args: Any, sent: Any, headers_to: Any, size: int) -> None:
    """Send each peer its header, and its message if short; a warp serves a peer."""
    me = d.rank(team)
    peer = ex.peer_of_warp(me, size)
    if peer != me:
        slot, nbytes = ex.packets(work, turn, me, size), sent[peer, 0] * args[ROW_NBYTES]
        d.put_packets_warp(team, slot, d.address(headers_to) + peer * HEADER_NBYTES, HEADER_NBYTES, peer, turn)
        if is_short(nbytes, size):
            begin, part = ex.part_of(nbytes)
            source = args[SEND] + sent[peer, 1] * args[ROW_NBYTES] + begin
            d.put_packets_warp(team, slot + 2 * HEADER_NBYTES, source, part, peer, turn)


@ex.inline
def receive_short(team: int, work: int, turn: int, args: Any, received: Any, size: int) -> None:
    """Receive each peer's short message, as far as it fits; a warp serves a peer."""
    me = d.rank(team)
    source = ex.peer_of_warp(me, size)
    nbytes = received[source, 0] * args[ROW_NBYTES]
    if source != me and is_short(nbytes, size):
        begin, part = ex.part_of(nbytes)
        to = args[RECV] + received[source, 1] * args[ROW_NBYTES] + begin
        length = stored(part, begin, received[source, 2] * args[ROW_NBYTES])
        d.receive_packets_warp(team, to, ex.packets(work, turn, source, size) + 2 * HEADER_NBYTES, length, turn)


@ex.inline
def put_long(team: int, work: int, turn: int, at: int, args: Any, sent: Any, size: int) -> None:
    """For each long message, send the chunk at offset `at` of this block's part."""
    me = d.rank(team)
    for j in range(1, size):
        peer = ex.after(me, j, size)
        nbytes = sent[peer, 0] * args[ROW_NBYTES]
        begin, part = ex.part_of(nbytes)
        if not is_short(nbytes, size) and at < part:
            source = args[SEND] + sent[peer, 1] * args[ROW_NBYTES] + begin + at
            d.put_block(team, ex.chunks(work, turn, me, size), source, min(ex.longest_chunk(size), part - at), peer)


@ex.inline
def take_long(team: int, work: int, turn: int, at: int, args: Any, received: Any, size: int) -> None:
    """Copy the peers' chunks at offset `at` of long messages, as far as they fit."""
    me = d.rank(team)
    for j in range(1, size):
        source = ex.after(me, j, size)
        nbytes = received[source, 0] * args[ROW_NBYTES]
        begin, part = ex.part_of(nbytes)
        if not is_short(nbytes, size) and at < part:
            kept = received[source, 2] * args[ROW_NBYTES]
            length = stored(min(ex.longest_chunk(size), part - at), begin + at, kept)
            to = args[RECV] + received[source, 1] * args[ROW_NBYTES] + begin + at
            d.copy_block(to, ex.chunks(work, turn, source, size), length)


@ex.inline
def copy_own(args: Any, sent: Any, received: Any, me: int) -> None:
    """Copy the rows that stay on this rank."""
    begin, part = ex.part_of(received[me, 0] * args[ROW_NBYTES])
    source = args[SEND] + sent[me, 1] * args[ROW_NBYTES] + begin
    length = stored(part, begin, received[me, 2] * args[ROW_NBYTES])
    d.copy_block(args[RECV] + received[me, 1] * args[ROW_NBYTES] + begin, source, length)
