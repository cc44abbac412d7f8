"""Allreduce, written in Python: the twin of cuda/collectives/allreduce.cu, with the same bits. In place: send is recv.

A kernel is made for one element type, one operator and one number of ranks: the loop over the ranks is unrolled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import cuda

from .. import device as d
from .exchange import after, chunks, last_turn, leave, longest_chunk, meet, next_turn, packets, part_of, peer_of_warp
from .workspace import packet_nbytes

Combine = Callable[[Any, Any], Any]


def one_shot(element: Any, itemsize: int, combine: Combine, size: int) -> Callable[..., None]:
    """Small: everyone sends everything to everyone as packets. One trip."""
    most = packet_nbytes(size)
    length = most // itemsize

    def allreduce_one_shot(team: int, work: int, args: Any, call: int) -> None:
        me = d.rank(team)
        begin, part = part_of(args[2])
        send, recv = args[0] + begin, args[1] + begin
        if part == 0:  # of this block, on all ranks
            return
        arrived = cuda.shared.array((size, length), element)
        turn = next_turn(work, last_turn(work))
        peer, ok = peer_of_warp(me, size), 1
        if peer != me:
            d.put_packets_warp(team, packets(work, turn, me, size), send, part, peer, turn)
            to = d.address(arrived) + peer * most
            ok = d.receive_packets_warp(team, to, packets(work, turn, peer, size), part, turn)
        if cuda.syncthreads_and(ok):
            mine, result = d.pointer(send, element), d.pointer(recv, element)
            for i in range(cuda.threadIdx.x, part // itemsize, cuda.blockDim.x):
                total = mine[i] if me == 0 else arrived[0, i]
                for rank in range(1, size):  # in the order of the ranks
                    total = combine(total, mine[i] if rank == me else arrived[rank, i])
                result[i] = total
        leave(work, turn)

    return allreduce_one_shot


def two_shot_packets(element: Any, itemsize: int, combine: Combine, size: int) -> Callable[..., None]:
    """Medium: every rank folds a shard of each tile; contributions and results go as packets, in one turn.

    Of a slot the first half is for contributions, the second for results. In a short tile some ranks have no shard, and
    those do not hear from each other. But who gets a result knows that all have contributed to it.
    """
    half = packet_nbytes(size) // 32 * 16
    columns = half // itemsize

    def allreduce_two_shot_packets(team: int, work: int, args: Any, call: int) -> None:
        me = d.rank(team)
        begin, part = part_of(args[2])
        send, recv = args[0] + begin, args[1] + begin
        if part == 0:  # of this block, on all ranks
            return
        arrived = cuda.shared.array((size, columns), element)
        shard = min(((part + size - 1) // size + 15) // 16 * 16, half)  # of one rank in a tile, in bytes
        turn = last_turn(work)
        peer = peer_of_warp(me, size)
        for tile in range(0, part, size * shard):
            mine = min(tile + me * shard, part)
            theirs = min(tile + peer * shard, part)
            length, length_of_theirs = min(shard, part - mine), min(shard, part - theirs)
            turn = next_turn(work, turn)
            to_peer, from_peer = packets(work, turn, me, size), packets(work, turn, peer, size)
            ok = 1
            if peer != me:
                d.put_packets_warp(team, to_peer, send + theirs, length_of_theirs, peer, turn)
                to = d.address(arrived) + peer * half
                ok = d.receive_packets_warp(team, to, from_peer, length, turn)
            if not cuda.syncthreads_and(ok):
                break
            own, result = d.pointer(send + mine, element), d.pointer(recv + mine, element)
            for i in range(cuda.threadIdx.x, length // itemsize, cuda.blockDim.x):
                total = own[i] if me == 0 else arrived[0, i]
                for rank in range(1, size):  # in the order of the ranks
                    total = combine(total, own[i] if rank == me else arrived[rank, i])
                result[i] = total
            cuda.syncthreads()
            if peer != me:
                d.put_packets_warp(team, to_peer + 2 * half, recv + mine, length, peer, turn)
                ok = d.receive_packets_warp(team, recv + theirs, from_peer + 2 * half, length_of_theirs, turn)
            if not cuda.syncthreads_and(ok):
                break
        leave(work, turn)

    return allreduce_two_shot_packets


def two_shot(element: Any, itemsize: int, combine: Combine, size: int) -> Callable[..., None]:
    """Large: every rank folds a shard of each tile and sends it to all. Each byte travels twice."""
    at_once = max(1, 16 // size)  # elements that a thread folds before it stores one: their loads travel together

    def allreduce_two_shot(team: int, work: int, args: Any, call: int) -> None:
        me = d.rank(team)
        begin, part = part_of(args[2])
        send, recv = args[0] + begin, args[1] + begin
        if part == 0:  # of this block, on all ranks
            return
        shard = min(((part + size - 1) // size + 15) // 16 * 16, longest_chunk(size))  # of one rank in a tile, in bytes
        stride = longest_chunk(size) // itemsize
        totals = cuda.local.array(at_once, element)
        turn = last_turn(work)
        for tile in range(0, part, size * shard):
            mine = min(tile + me * shard, part)
            length = min(shard, part - mine)
            turn = next_turn(work, turn)
            for j in range(1, size):  # each rank begins with the next one
                peer = after(me, j, size)
                at = min(tile + peer * shard, part)
                d.put_block(team, chunks(work, turn, me, size), send + at, min(shard, part - at), peer)
            if not meet(team, turn, size):
                break
            own, result = d.pointer(send + mine, element), d.pointer(recv + mine, element)
            arrived = d.pointer(chunks(work, turn, 0, size), element)
            for first in range(cuda.threadIdx.x, length // itemsize, at_once * cuda.blockDim.x):
                for k in range(at_once):
                    i = min(first + k * cuda.blockDim.x, length // itemsize - 1)
                    total = own[i] if me == 0 else arrived[i]
                    for rank in range(1, size):  # in the order of the ranks
                        total = combine(total, own[i] if rank == me else arrived[rank * stride + i])
                    totals[k] = total
                for k in range(at_once):
                    if first + k * cuda.blockDim.x < length // itemsize:
                        result[first + k * cuda.blockDim.x] = totals[k]
            cuda.syncthreads()
            turn = next_turn(work, turn)
            for j in range(1, size):
                d.put_block(team, chunks(work, turn, me, size), recv + mine, length, after(me, j, size))
            if not meet(team, turn, size):
                break
            for j in range(1, size):
                source = after(me, j, size)
                at = min(tile + source * shard, part)
                d.copy_block(recv + at, chunks(work, turn, source, size), min(shard, part - at))
        leave(work, turn)

    return allreduce_two_shot
