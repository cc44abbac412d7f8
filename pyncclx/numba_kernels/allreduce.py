"""Allreduce, written in Python: the twin of cuda/collectives/allreduce.cu, with the same bits. In place: send is recv.

A kernel is made for one element type, one operator and one number of ranks: the loop over the ranks is unrolled. With
two shots a message goes in *tiles*, of which every rank folds a *shard*.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import cuda

from .. import device as d
from .exchange import (
    NBYTES,
    RECV,
    SEND,
    after,
    chunks,
    inline,
    last_turn,
    leave,
    longest_chunk,
    meet,
    next_turn,
    part_of,
    peer_of_warp,
    put_chunks,
    swap_packets,
)
from .workspace import packet_nbytes

Combine = Callable[[Any, Any], Any]


def one_shot(element: Any, itemsize: int, combine: Combine, size: int) -> Callable[..., None]:
    """Small messages: every rank sends all of its own to all as packets. One trip."""
    slot = packet_nbytes(size)
    stride, fold = slot // itemsize, _folding(combine, size)
    elements = size * stride

    def allreduce_one_shot(team: int, work: int, args: Any, call: int) -> None:
        me = d.rank(team)
        begin, part = part_of(args[NBYTES])
        send, recv = args[SEND] + begin, args[RECV] + begin
        if part == 0:  # of this block, on all ranks
            return
        arrived = cuda.shared.array(elements, element)
        turn = next_turn(work, last_turn(work))
        to = d.address(arrived) + peer_of_warp(me, size) * slot
        if cuda.syncthreads_and(swap_packets(team, work, turn, me, size, send, part, to, part)):
            own, result = d.pointer(send, element), d.pointer(recv, element)
            for i in range(cuda.threadIdx.x, part // itemsize, cuda.blockDim.x):
                result[i] = fold(own, arrived, stride, me, i)
        leave(work, turn)

    return allreduce_one_shot


def two_shot_packets(element: Any, itemsize: int, combine: Combine, size: int) -> Callable[..., None]:
    """Medium messages: contributions and results of a tile go as packets, in one turn.

    Of a slot the first half is for contributions, the second for results. In a short tile some ranks have no shard, and
    get no contributions. But a rank that gets a result from another has sent to it, and so has every rank.
    """
    half = packet_nbytes(size) // 32 * 16
    stride, fold = half // itemsize, _folding(combine, size)
    elements = size * stride

    def allreduce_two_shot_packets(team: int, work: int, args: Any, call: int) -> None:
        me = d.rank(team)
        begin, part = part_of(args[NBYTES])
        send, recv = args[SEND] + begin, args[RECV] + begin
        if part == 0:  # of this block, on all ranks
            return
        arrived = cuda.shared.array(elements, element)
        shard = shard_nbytes(part, half, size)
        turn = last_turn(work)
        peer = peer_of_warp(me, size)
        for tile in range(0, part, size * shard):
            mine, length = shard_of(me, tile, shard, part)
            theirs, length_of_theirs = shard_of(peer, tile, shard, part)
            turn = next_turn(work, turn)
            to = d.address(arrived) + peer * half
            if not cuda.syncthreads_and(
                swap_packets(team, work, turn, me, size, send + theirs, length_of_theirs, to, length)
            ):
                break
            own, result = d.pointer(send + mine, element), d.pointer(recv + mine, element)
            for i in range(cuda.threadIdx.x, length // itemsize, cuda.blockDim.x):
                result[i] = fold(own, arrived, stride, me, i)
            cuda.syncthreads()
            halves = work + 2 * half  # packets take twice as much as what they carry
            if not cuda.syncthreads_and(
                swap_packets(team, halves, turn, me, size, recv + mine, length, recv + theirs, length_of_theirs)
            ):
                break
        leave(work, turn)

    return allreduce_two_shot_packets


def two_shot(element: Any, itemsize: int, combine: Combine, size: int) -> Callable[..., None]:
    """Large messages: contributions and results of a tile go as chunks. Each byte travels twice."""
    at_once = max(1, 16 // size)  # elements that a thread folds before it stores one: their loads travel together
    fold = _folding(combine, size)

    def allreduce_two_shot(team: int, work: int, args: Any, call: int) -> None:
        me = d.rank(team)
        begin, part = part_of(args[NBYTES])
        send, recv = args[SEND] + begin, args[RECV] + begin
        if part == 0:  # of this block, on all ranks
            return
        shard = shard_nbytes(part, longest_chunk(size), size)
        stride = longest_chunk(size) // itemsize
        totals = cuda.local.array(at_once, element)
        turn = last_turn(work)
        for tile in range(0, part, size * shard):
            turn = next_turn(work, turn)
            put_shards(team, work, turn, me, size, send, tile, shard, part)
            if not meet(team, turn, size):
                break
            mine, length = shard_of(me, tile, shard, part)
            own, result = d.pointer(send + mine, element), d.pointer(recv + mine, element)
            arrived, count = d.pointer(chunks(work, turn, 0, size), element), length // itemsize
            for first in range(cuda.threadIdx.x, count, at_once * cuda.blockDim.x):
                for k in range(at_once):
                    i = min(first + k * cuda.blockDim.x, count - 1)
                    totals[k] = fold(own, arrived, stride, me, i)
                for k in range(at_once):
                    if first + k * cuda.blockDim.x < count:
                        result[first + k * cuda.blockDim.x] = totals[k]
            cuda.syncthreads()
            turn = next_turn(work, turn)
            put_chunks(team, work, turn, me, size, recv + mine, 0, length)
            if not meet(team, turn, size):
                break
            take_shards(work, turn, me, size, recv, tile, shard, part)
        leave(work, turn)

    return allreduce_two_shot


def _folding(combine: Combine, size: int) -> Callable[..., Any]:
    """A function that folds one element of all ranks."""

    @inline
    def fold(own: Any, arrived: Any, stride: int, me: int, i: int) -> Any:
        """Element `i` of all ranks, in rank order; that of another rank r is ``arrived[r * stride + i]``.

        Indices are unsigned: Numba compares others with 0, and then the caller's loop is not unrolled.
        """
        total = own[i] if me == 0 else arrived[np.uintp(i)]
        for rank in range(1, size):
            total = combine(total, own[i] if rank == me else arrived[np.uintp(rank * stride + i)])
        return total

    return fold


@inline
def shard_nbytes(part: int, most: int, size: int) -> Any:
    """The length of a shard: a rank's share of a part in whole packs of 16 bytes, or `most`."""
    return min(((part + size - 1) // size + 15) // 16 * 16, most)


@inline
def shard_of(rank: int, tile: int, shard: int, part: int) -> tuple[int, int]:
    """The shard of a rank in the tile that begins at `tile` of a part: where it begins, and its bytes."""
    begin = min(tile + rank * shard, part)
    return begin, min(shard, part - begin)


@inline
def put_shards(
    team: int, work: int, turn: int, me: int, size: int, send: int, tile: int, shard: int, part: int
) -> None:
    """Send every peer its shard of a tile, as a chunk. Each rank begins with the next one."""
    for j in range(1, size):
        peer = after(me, j, size)
        begin, length = shard_of(peer, tile, shard, part)
        d.put_block(team, chunks(work, turn, me, size), send + begin, length, peer)


@inline
def take_shards(work: int, turn: int, me: int, size: int, recv: int, tile: int, shard: int, part: int) -> None:
    """Copy what the peers have made of their shards from their chunks."""
    for j in range(1, size):
        source = after(me, j, size)
        begin, length = shard_of(source, tile, shard, part)
        d.copy_block(recv + begin, chunks(work, turn, source, size), length)
