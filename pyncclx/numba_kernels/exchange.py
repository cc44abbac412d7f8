"""How the collectives written in Python exchange data: by turns of all ranks, through slots in a workspace.

The workspace is memory of every rank that all have mapped, alike on all of them:

    turns, one for each block | packet slots | chunk slots

The block with index b exchanges data with block b of the other ranks, and no other. It counts its *turns*: in a turn
every rank sends something to every other, as packets or as a chunk and a signal, and waits for something from every
other. So a rank in turn t has received something of turn t - 1 from each peer, which hence is done with turn t - 2.
Slots alternate by the turn's parity, which is all that keeps a slot from being overwritten while its owner still reads
it: what is stored in turn t replaces what was read in turn t - 2. The count stays in device memory from kernel to
kernel; no argument changes from call to call, and a captured launch can be replayed.

A slot belongs to (block, parity, source). Packets have slots of their own: they carry the flag that they are new, so
they must not lie where chunks have been.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from .. import device as d
from ..backends.compilers import numba_cuda
from .workspace import CHUNKS_BEGIN, CHUNKS_NBYTES, PACKETS_BEGIN, PACKETS_NBYTES, chunk_nbytes, packet_nbytes

cuda = numba_cuda.target()  # `numba.cuda`, or its counterpart in numba-cuda-mlir

SEND, RECV, NBYTES = range(3)  # indices into a kernel's arguments

_Function = TypeVar("_Function", bound=Callable[..., Any])


def inline(function: _Function) -> _Function:
    """A function for kernels, which becomes a part of each that calls it."""
    inlined: _Function = cuda.jit(function, device=True, inline="always")
    return inlined


longest_packets, longest_chunk = inline(packet_nbytes), inline(chunk_nbytes)  # for kernels


@inline
def after(me: int, j: int, size: int) -> Any:
    """The rank that comes `j` ranks after `me`, and rank 0 after the last; j is at most `size`."""
    rank = me + j
    return rank - size if rank >= size else rank


@inline
def peer_of_warp(me: int, size: int) -> Any:
    """The peer that this warp sends packets to and receives from; `me` for a warp without one. Each peer has a warp."""
    return after(me, min(1 + cuda.threadIdx.x // 32, size), size)


@inline
def share_of(nbytes: int) -> Any:
    """The most that a block moves of a message: an equal share, in whole packs of 16 bytes."""
    packs, blocks = (nbytes + 15) // 16 + cuda.gridDim.x - 1, cuda.gridDim.x
    if packs >> 32 != 0:  # a division of 64 bits takes 100 ns
        return packs // blocks * 16
    return np.int64(np.uint32(packs) // np.uint32(blocks)) * 16


@inline
def part_of(nbytes: int) -> tuple[int, int]:
    """What this block moves of a message: where that begins, and its bytes."""
    each = share_of(nbytes)
    begin = min(each * cuda.blockIdx.x, nbytes)
    return begin, min(each, nbytes - begin)


# Slots


@inline
def packets(work: int, turn: int, source: int, size: int) -> Any:
    """The packet slot for `source` in a turn."""
    begin = work + PACKETS_BEGIN + (cuda.blockIdx.x * 2 + (turn & 1)) * PACKETS_NBYTES
    return begin + source * longest_packets(size) * 2


@inline
def chunks(work: int, turn: int, source: int, size: int) -> Any:
    """The chunk slot for `source` in a turn."""
    begin = work + CHUNKS_BEGIN + (cuda.blockIdx.x * 2 + (turn & 1)) * CHUNKS_NBYTES
    return begin + source * longest_chunk(size)


# Turns


@inline
def last_turn(work: int) -> Any:
    """The turn this block took last."""
    return d.pointer(work, np.int64)[cuda.blockIdx.x]


@inline
def next_turn(work: int, turn: int) -> int:
    """The turn after `turn`.

    Packets carry its last 32 bits. They are never 0, which untouched slots contain, and the parity alternates all the
    same. After 2^32 turns a packet that was never replaced would look new: so when these bits begin anew, a block
    clears the slots of the turn that follows, which peers write once they have received something of this one.
    """
    turn += 1
    if turn & 0xFFFFFFFF == 0:
        turn += 2
    if turn & 0xFFFFFFFF <= 3 or turn & 0xFFFFFFFF == 0xFFFFFFFF:
        cuda.syncthreads()  # until all have read what the turn before left there
        words = d.pointer(packets(work, turn + 1, 0, 1), np.int64)
        for i in range(cuda.threadIdx.x, PACKETS_NBYTES // 8, cuda.blockDim.x):
            words[i] = 0
        cuda.syncthreads()
        d.fence()
    return turn


@inline
def leave(work: int, turn: int) -> None:
    """End the kernel: its last turn is over."""
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        d.pointer(work, np.int64)[cuda.blockIdx.x] = turn


@inline
def meet(team: int, turn: int, size: int) -> Any:
    """Signal to all peers that this block's data of the turn is stored, and wait for their signals. False: leave.

    By all threads. The barrier before comes between what all threads of the block stored, or read of the turn before,
    and the signals that one thread for each peer sets. The one behind lets all see what those threads have acquired.
    """
    cuda.syncthreads()
    me, peer = d.rank(team), cuda.threadIdx.x
    ok = 1
    if peer < size and peer != me:
        ok = d.signal_set(team, peer, cuda.blockIdx.x * size + me, turn)
        ok &= d.wait_until(team, cuda.blockIdx.x * size + peer, turn)
    return cuda.syncthreads_and(ok) != 0


# Data


@inline
def swap_packets(
    team: int, work: int, turn: int, me: int, size: int, send: int, send_nbytes: int, recv: int, recv_nbytes: int
) -> Any:
    """By each warp with a peer: send a message to it as packets, and receive one from it. 0: leave."""
    peer, ok = peer_of_warp(me, size), 1
    if peer != me:
        d.put_packets_warp(team, packets(work, turn, me, size), send, send_nbytes, peer, turn)
        ok = d.receive_packets_warp(team, recv, packets(work, turn, peer, size), recv_nbytes, turn)
    return ok


@inline
def put_chunks(team: int, work: int, turn: int, me: int, size: int, send: int, stride: int, nbytes: int) -> None:
    """Send every peer a chunk: that of rank r begins at ``send + r * stride``. Each rank begins with the next one."""
    for j in range(1, size):
        peer = after(me, j, size)
        d.put_block(team, chunks(work, turn, me, size), send + peer * stride, nbytes, peer)


@inline
def take_chunks(work: int, turn: int, me: int, size: int, recv: int, stride: int, nbytes: int) -> None:
    """Copy the peers' chunks from their slots: that of rank r to ``recv + r * stride``."""
    for j in range(1, size):
        source = after(me, j, size)
        d.copy_block(recv + source * stride, chunks(work, turn, source, size), nbytes)
