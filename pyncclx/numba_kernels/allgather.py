"""Allgather, written in Python: twin of cuda/collectives/allgather.cu. In place: send is this rank's block of recv."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import device as d
from .exchange import (
    after,
    chunks,
    last_turn,
    leave,
    longest_chunk,
    longest_packets,
    meet,
    next_turn,
    packets,
    part_of,
    peer_of_warp,
)


def allgather(size: int) -> Callable[..., None]:
    """Every rank sends its block to all; short ones as packets, long ones chunk by chunk."""

    def kernel(team: int, work: int, args: Any, call: int) -> None:
        send, recv, nbytes = args[0], args[1], args[2]
        me = d.rank(team)
        begin, part = part_of(nbytes)
        if part == 0:  # of this block, on all ranks
            return
        turn = last_turn(work)
        ok = True
        if part <= longest_packets(size):
            turn = next_turn(work, turn)
            peer = peer_of_warp(me, size)
            if peer != me:
                d.put_packets_warp(team, packets(work, turn, me, size), send + begin, part, peer, turn)
                d.receive_packets_warp(team, recv + peer * nbytes + begin, packets(work, turn, peer, size), part, turn)
        else:
            most = longest_chunk(size)
            for at in range(begin, begin + part, most):
                turn = next_turn(work, turn)
                length = min(most, begin + part - at)
                for j in range(1, size):
                    d.put_block(team, chunks(work, turn, me, size), send + at, length, after(me, j, size))
                ok = meet(team, turn, size)
                if not ok:
                    break
                for j in range(1, size):
                    source = after(me, j, size)
                    d.copy_block(recv + source * nbytes + at, chunks(work, turn, source, size), length)
        if ok and send != recv + me * nbytes:
            d.copy_block(recv + me * nbytes + begin, send + begin, part)
        leave(work, turn)

    return kernel
