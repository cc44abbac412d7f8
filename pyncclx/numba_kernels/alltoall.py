"""Alltoall, written in Python: the twin of cuda/alltoall.cu. In place: a piece leaves before it is replaced."""

from __future__ import annotations

from typing import Any

from numba import cuda

import pyncclx.device as d

from .exchange import chunks, last_turn, leave, longest_chunk, longest_packets, meet, next_turn, packets, part_of


def alltoall(team: int, work: int, args: Any, call: int) -> None:
    """Every rank sends a block to each; short ones as packets, long ones chunk by chunk."""
    send, recv, nbytes = args[0], args[1], args[2]
    me, size = d.rank(team), d.size(team)
    begin, part = part_of(nbytes)
    if part == 0:  # of this block, on all ranks
        return
    turn = last_turn(work)
    ok = True
    if part <= longest_packets(size):
        turn = next_turn(work, turn)
        first, warps = cuda.threadIdx.x // 32, cuda.blockDim.x // 32
        for j in range(first, size - 1, warps):  # a warp for each peer, to which it sends and from which it receives
            peer = (me + 1 + j) % size
            d.put_packets_warp(team, packets(work, turn, me, size), send + peer * nbytes + begin, part, peer, turn)
        for j in range(first, size - 1, warps):
            peer = (me + 1 + j) % size
            d.receive_packets_warp(team, recv + peer * nbytes + begin, packets(work, turn, peer, size), part, turn)
    else:
        most = longest_chunk(size)
        for at in range(begin, begin + part, most):
            turn = next_turn(work, turn)
            length = min(most, begin + part - at)
            for j in range(1, size):
                peer = (me + j) % size
                d.put_block(team, chunks(work, turn, me, size), send + peer * nbytes + at, length, peer)
            ok = meet(team, turn)
            if not ok:
                break
            for j in range(1, size):
                peer = (me + j) % size
                d.copy_block(recv + peer * nbytes + at, chunks(work, turn, peer, size), length)
    if ok and send != recv:
        d.copy_block(recv + me * nbytes + begin, send + me * nbytes + begin, part)
    leave(work, turn)
