"""Alltoallv with counts on the device: twin of cuda/collectives/alltoallv.cu.

In the first turn every rank sends every peer a *header*: the number of rows for it, and the length of the rank's
longest message. Short messages follow in the same turn, as packets in the same slot. Long messages are sent chunk by
chunk in further turns. Every rank computes the number of turns from the longest message of all ranks, so all ranks take
equally many.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .. import device as d
from ..memory.layout import MAX_RANKS
from ..memory.parameters import SENDER
from . import exchange as ex
from .exchange import cuda
from .rows import PLACEMENT, RECV, ROW_NBYTES, SEND, rows_from, rows_to, write_outputs

# Two words: the number of rows, and the bytes of the longest message. With layout="sender" the upper half of the first
# word has the index of the first row at the sender.
HEADER_NBYTES = 16


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
    """Return how many bytes of a part fit, if the first `kept` of its message do.

    The part begins at `begin` of the message.
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
