"""Allgather, written in Python: the twin of cuda/allgather.cu. In place: send is this rank's block of recv."""

from __future__ import annotations

from typing import Any

from numba import cuda

import pyncclx.device as d

from .exchange import chunks, last_turn, leave, longest_chunk, longest_packets, meet, next_turn, packets, part_of


def allgather(team: int, work: int, args: Any, call: int) -> None:
    """Every rank sends its block to all; short ones as packets, long ones chunk by chunk."""
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
        for j in range(first, size - 1, warps):  # a warp for each peer
            to = packets(work, turn, me, size)
            d.put_packets_warp(team, to, send + begin, part, (me + 1 + j) % size, turn)
        for j in range(first, size - 1, warps):
            source = (me + 1 + j) % size
            d.receive_packets_warp(team, recv + source * nbytes + begin, packets(work, turn, source, size), part, turn)
    else:
        most = longest_chunk(size)
        for at in range(begin, begin + part, most):
            turn = next_turn(work, turn)
            length = min(most, begin + part - at)
            for j in range(1, size):
                d.put_block(team, chunks(work, turn, me, size), send + at, length, (me + j) % size)
            ok = meet(team, turn)
            if not ok:
                break
            for j in range(1, size):
                source = (me + j) % size
                d.copy_block(recv + source * nbytes + at, chunks(work, turn, source, size), length)
    if ok and send != recv + me * nbytes:
        d.copy_block(recv + me * nbytes + begin, send + begin, part)
    leave(work, turn)
