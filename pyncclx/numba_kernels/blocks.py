"""Barrier, Allgather and Alltoall in Python: twins of cuda/collectives/.

Allgather and Alltoall send blocks of equal length. They differ in where the block for rank r begins in `send`: at 0
for all ranks, or after the blocks for lower ranks. Short blocks are sent as packets, long blocks chunk by chunk. In
place, `send` is this rank's block of `recv`, or all of `recv`; a block is sent before it is overwritten.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from .. import device as d
from . import exchange as ex


def barrier(size: int) -> Callable[..., None]:
    """Return a kernel that signals every peer and waits for a signal from each."""

    def kernel(team: int, work: int, args: Any, call: int) -> None:
        d.barrier(team)

    return kernel


def _exchange(size: int, *, own_blocks: int) -> Callable[..., None]:
    """Return a kernel; `own_blocks` is 1 if each rank gets a different block, else 0."""

    def kernel(team: int, work: int, args: Any, call: int) -> None:
        me, nbytes = d.rank(team), args[ex.NBYTES]
        begin, part = ex.part_of(nbytes)
        if part == 0:  # this block of the grid has no part on any rank
            return
        send, recv, stride = args[ex.SEND], args[ex.RECV], own_blocks * nbytes
        turn, ok = ex.last_turn(work), True
        if part <= ex.longest_packets(size):
            turn = ex.next_turn(work, turn)
            peer = ex.peer_of_warp(me, size)
            to, source = recv + peer * nbytes + begin, send + peer * stride + begin
            ex.swap_packets(team, work, turn, me, size, source, part, to, part)
        else:
            for at in range(begin, begin + part, ex.longest_chunk(size)):
                turn = ex.next_turn(work, turn)
                length = min(ex.longest_chunk(size), begin + part - at)
                ex.put_chunks(team, work, turn, me, size, send + at, stride, length)
                ok = ex.meet(team, turn, size)
                if not ok:
                    break
                ex.take_chunks(work, turn, me, size, recv + at, nbytes, length)
        if ok and send + me * stride != recv + me * nbytes:
            d.copy_block(recv + me * nbytes + begin, send + me * stride + begin, part)
        ex.leave(work, turn)

    return kernel


# In Allgather, every rank sends one block to all ranks; in Alltoall, a different block to each rank.
allgather, alltoall = partial(_exchange, own_blocks=0), partial(_exchange, own_blocks=1)
