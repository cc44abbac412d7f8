"""Allreduce in Python: twin of cuda/collectives/allreduce.cu, with the same bits.

A kernel is made for one element type, one operator and one number of ranks, and its loop over the ranks is unrolled.
The two-shot kernels process a message in *tiles*; every rank reduces one part of a tile, its *shard*. In place, send is
recv. A *turn* is one exchange of data with all peers (`exchange.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .. import device as d
from . import exchange as ex
from .exchange import cuda
from .workspace import packet_nbytes

Combine = Callable[[Any, Any], Any]


def one_shot(element: Any, itemsize: int, combine: Combine, size: int) -> Callable[..., None]:
    """Return a kernel for small messages: each rank sends its data to all as packets.

    The data takes one trip between ranks.
    """
    slot = packet_nbytes(size)
    stride, fold = slot // itemsize, _folding(combine, size)
    elements = size * stride

    def allreduce_one_shot(team: int, work: int, args: Any, call: int) -> None:
        me = d.rank(team)
        begin, part = ex.part_of(args[ex.NBYTES])
        send, recv = args[ex.SEND] + begin, args[ex.RECV] + begin
        if part == 0:  # this block has no part on any rank
            return
        arrived = cuda.shared.array(elements, element)
        turn = ex.next_turn(work, ex.last_turn(work))
        to = d.address(arrived) + ex.peer_of_warp(me, size) * slot
        if cuda.syncthreads_and(ex.swap_packets(team, work, turn, me, size, send, part, to, part)):
            own, result = d.pointer(send, element), d.pointer(recv, element)
            for i in range(cuda.threadIdx.x, part // itemsize, cuda.blockDim.x):
                result[i] = fold(own, arrived, stride, me, i)
        ex.leave(work, turn)

    return allreduce_one_shot


def two_shot_packets(element: Any, itemsize: int, combine: Combine, size: int) -> Callable[..., None]:
    """Return a kernel for medium messages: packets, one turn for each tile.

    The first half of a slot is for contributions, the second for results. Every rank sends its contribution to each
    rank that has a shard, and receives that shard's result from it. In a short tile some ranks have no shard. They
    receive no contributions.
    """
    half = packet_nbytes(size) // 32 * 16
    stride, fold = half // itemsize, _folding(combine, size)
    elements = size * stride

    def allreduce_two_shot_packets(team: int, work: int, args: Any, call: int) -> None:
        me = d.rank(team)
        begin, part = ex.part_of(args[ex.NBYTES])
        send, recv = args[ex.SEND] + begin, args[ex.RECV] + begin
        if part == 0:  # this block has no part on any rank
            return
        arrived = cuda.shared.array(elements, element)
        shard = shard_nbytes(part, half, size)
        turn = ex.last_turn(work)
        peer = ex.peer_of_warp(me, size)
        for tile in range(0, part, size * shard):
            mine, length = shard_of(me, tile, shard, part)
            theirs, length_of_theirs = shard_of(peer, tile, shard, part)
            turn = ex.next_turn(work, turn)
            to = d.address(arrived) + peer * half
            if not cuda.syncthreads_and(
                ex.swap_packets(team, work, turn, me, size, send + theirs, length_of_theirs, to, length)
            ):
                break
            own, result = d.pointer(send + mine, element), d.pointer(recv + mine, element)
            for i in range(cuda.threadIdx.x, length // itemsize, cuda.blockDim.x):
                result[i] = fold(own, arrived, stride, me, i)
            cuda.syncthreads()
            halves = work + 2 * half  # packets are twice as long as their payload
            if not cuda.syncthreads_and(
                ex.swap_packets(team, halves, turn, me, size, recv + mine, length, recv + theirs, length_of_theirs)
            ):
                break
        ex.leave(work, turn)

    return allreduce_two_shot_packets


def two_shot(element: Any, itemsize: int, combine: Combine, size: int) -> Callable[..., None]:
    """Return a kernel for large messages: chunks, two turns for each tile.

    Each byte is sent twice.
    """
    # Number of elements that a thread reduces before it stores them, so that their loads overlap.
    at_once = max(1, 16 // size)
    fold = _folding(combine, size)

    def allreduce_two_shot(team: int, work: int, args: Any, call: int) -> None:
        me = d.rank(team)
        begin, part = ex.part_of(args[ex.NBYTES])
        send, recv = args[ex.SEND] + begin, args[ex.RECV] + begin
        if part == 0:  # this block has no part on any rank
            return
        shard = shard_nbytes(part, ex.longest_chunk(size), size)
        stride = ex.longest_chunk(size) // itemsize
        totals = cuda.local.array(at_once, element)
        turn = ex.last_turn(work)
        for tile in range(0, part, size * shard):
            turn = ex.next_turn(work, turn)
            put_shards(team, work, turn, me, size, send, tile, shard, part)
            if not ex.meet(team, turn, size):
                break
            mine, length = shard_of(me, tile, shard, part)
            own, result = d.pointer(send + mine, element), d.pointer(recv + mine, element)
            arrived, count = d.pointer(ex.chunks(work, turn, 0, size), element), length // itemsize
            for first in range(cuda.threadIdx.x, count, at_once * cuda.blockDim.x):
                for k in range(at_once):
                    i = min(first + k * cuda.blockDim.x, count - 1)
                    totals[k] = fold(own, arrived, stride, me, i)
                for k in range(at_once):
                    if first + k * cuda.blockDim.x < count:
                        result[first + k * cuda.blockDim.x] = totals[k]
            cuda.syncthreads()
            turn = ex.next_turn(work, turn)
            ex.put_chunks(team, work, turn, me, size, recv + mine, 0, length)
            if not ex.meet(team, turn, size):
                break
            take_shards(work, turn, me, size, recv, tile, shard, part)
        ex.leave(work, turn)

    return allreduce_two_shot


def _folding(combine: Combine, size: int) -> Callable[..., Any]:
    """Return a device function that reduces one element over all ranks."""

    @ex.inline
    def fold(own: Any, arrived: Any, stride: int, me: int, i: int) -> Any:
        """Reduce element `i` over all ranks, in rank order.

        Peer r's element is ``arrived[r * stride + i]``. Indices are unsigned, because Numba compares signed indices
        with 0, which prevents unrolling of the caller's loop.
        """
        total = own[i] if me == 0 else arrived[np.uintp(i)]
        for rank in range(1, size):
            total = combine(total, own[i] if rank == me else arrived[np.uintp(rank * stride + i)])
        return total

    return fold


@ex.inline
def shard_nbytes(part: int, most: int, size: int) -> Any:
    """Return a shard's length: a rank's share in whole packs of 16 bytes, or `most`."""
    return min(((part + size - 1) // size + 15) // 16 * 16, most)


@ex.inline
def shard_of(rank: int, tile: int, shard: int, part: int) -> tuple[int, int]:
    """Return offset and bytes of a rank's shard in the tile that begins at `tile`."""
    begin = min(tile + rank * shard, part)
    return begin, min(shard, part - begin)


@ex.inline
def put_shards(
    team: int, work: int, turn: int, me: int, size: int, send: int, tile: int, shard: int, part: int
) -> None:
    """Send each peer its shard of a tile as a chunk, beginning with the next rank."""
    for j in range(1, size):
        peer = ex.after(me, j, size)
        begin, length = shard_of(peer, tile, shard, part)
        d.put_block(team, ex.chunks(work, turn, me, size), send + begin, length, peer)


@ex.inline
def take_shards(work: int, turn: int, me: int, size: int, recv: int, tile: int, shard: int, part: int) -> None:
    """Copy the peers' reduced shards of a tile from their chunks."""
    for j in range(1, size):
        source = ex.after(me, j, size)
        begin, length = shard_of(source, tile, shard, part)
        d.copy_block(recv + begin, ex.chunks(work, turn, source, size), length)
