"""Exchange data in Python kernels: in turns, through slots of a workspace.

The workspace is memory of every rank that all ranks have mapped, with the same layout on all ranks:

    turns, one for each block | packet slots | chunk slots

The block with index b exchanges data only with block b of the other ranks. It counts its *turns*. In a turn every rank
sends to every other rank, packets or a chunk and a signal, and receives from every other rank. So a rank in turn t has
received data of turn t - 1 from each peer, and each peer has completed turn t - 2. Slots alternate by the turn's
parity: data of turn t replaces data that was read in turn t - 2. Only this order protects a slot while its owner reads
it. The count stays in device memory between kernels. So no argument changes from call to call, and a captured launch
can be replayed.

A slot belongs to (block, parity, source). Packets have separate slots. A packet is recognized by the flag in it, so
stale data of a chunk could look like a packet.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from .. import device as d
from ..backends.compilers import numba_cuda
from .workspace import CHUNKS_BEGIN, CHUNKS_NBYTES, PACKETS_BEGIN, PACKETS_NBYTES, chunk_nbytes, packet_nbytes

cuda = numba_cuda.target()  # numba.cuda, or the same module of numba-cuda-mlir

SEND, RECV, NBYTES = range(3)  # indices into a kernel's arguments

_Function = TypeVar("_Function", bound=Callable[..., Any])


def inline(function: _Function) -> _Function:
    """Compile a device function that is inlined into its callers."""
    inlined: _Function = cuda.jit(function, device=True, inline="always")
    return inlined


longest_packets, longest_chunk = inline(packet_nbytes), inline(chunk_nbytes)  # device functions


@inline
def after(me: int, j: int, size: int) -> Any:
    """Return the rank `j` ranks after `me`, cyclically; `j` is at most `size`."""
    rank = me + j
    return rank - size if rank >= size else rank


@inline
def peer_of_warp(me: int, size: int) -> Any:
    """Return the peer of this warp, for packets; `me` if it has none.

    Each peer has a warp.
    """
    return after(me, min(1 + cuda.threadIdx.x // 32, size), size)


@inline
def share_of(nbytes: int) -> Any:
    """Return a block's share of a message, in bytes, as whole packs of 16 bytes."""
    packs, blocks = (nbytes + 15) // 16 + cuda.gridDim.x - 1, cuda.gridDim.x
    if packs >> 32 != 0:  # divide 64-bit numbers only if needed: it takes 100 ns
        return packs // blocks * 16
    return np.int64(np.uint32(packs) // np.uint32(blocks)) * 16


@inline
def part_of(nbytes: int) -> tuple[int, int]:
    """Return offset and bytes of this block's part of a message."""
    each = share_of(nbytes)
    begin = min(each * cuda.blockIdx.x, nbytes)
    return begin, min(each, nbytes - begin)


# Slots


@inline
def packets(work: int, turn: int, source: int, size: int) -> Any:
    """Return the address of the packet slot for `source` in a turn."""
    begin = work + PACKETS_BEGIN + (cuda.blockIdx.x * 2 + (turn & 1)) * PACKETS_NBYTES
    return begin + source * longest_packets(size) * 2


@inline
def chunks(work: int, turn: int, source: int, size: int) -> Any:
    """Return the address of the chunk slot for `source` in a turn."""
    begin = work + CHUNKS_BEGIN + (cuda.blockIdx.x * 2 + (turn & 1)) * CHUNKS_NBYTES
    return begin + source * longest_chunk(size)


# Turns


@inline
def last_turn(work: int) -> Any:
    """Return the number of this block's last turn."""
    return d.pointer(work, np.int64)[cuda.blockIdx.x]


@inline
def next_turn(work: int, turn: int) -> int:
    """Return the number of the turn after `turn`.

    Packets carry its last 32 bits. They are never 0, the content of unused slots, and their parity always alternates.
    After 2^32 turns an old packet would look new. So when these bits wrap around, a block clears the slots of the
    following turn. Peers write to those only after they have received data of this turn.
    """
    turn += 1
    if turn & 0xFFFFFFFF == 0:
        turn += 2
    if turn & 0xFFFFFFFF <= 3 or turn & 0xFFFFFFFF == 0xFFFFFFFF:
        cuda.syncthreads()  # now all threads have read the slots' old content
        words = d.pointer(packets(work, turn + 1, 0, 1), np.int64)
        for i in range(cuda.threadIdx.x, PACKETS_NBYTES // 8, cuda.blockDim.x):
            words[i] = 0
        cuda.syncthreads()
        d.fence()
    return turn


@inline
def leave(work: int, turn: int) -> None:
    """Store the number of the last turn, at the end of the kernel."""
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        d.pointer(work, np.int64)[cuda.blockIdx.x] = turn


@inline
def meet(team: int, turn: int, size: int) -> Any:
    """Signal all peers that this block has stored its data; wait for their signals.

    Call it with all threads. Returns False if a wait failed. The first barrier orders the block's stores, and its reads
    of the last turn, before the signals, which one thread for each peer sets. The last barrier makes the peers' data,
    which these threads have acquired, visible to all threads.
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
    """Exchange packets, each warp with its peer; return 0 if a wait failed."""
    peer, ok = peer_of_warp(me, size), 1
    if peer != me:
        d.put_packets_warp(team, packets(work, turn, me, size), send, send_nbytes, peer, turn)
        ok = d.receive_packets_warp(team, recv, packets(work, turn, peer, size), recv_nbytes, turn)
    return ok


@inline
def put_chunks(team: int, work: int, turn: int, me: int, size: int, send: int, stride: int, nbytes: int) -> None:
    """Send each rank r a chunk from ``send + r * stride``; begin with the next rank."""
    for j in range(1, size):
        peer = after(me, j, size)
        d.put_block(team, chunks(work, turn, me, size), send + peer * stride, nbytes, peer)


@inline
def take_chunks(work: int, turn: int, me: int, size: int, recv: int, stride: int, nbytes: int) -> None:
    """Copy each peer r's chunk from its slot to ``recv + r * stride``."""
    for j in range(1, size):
        source = after(me, j, size)
        d.copy_block(recv + source * stride, chunks(work, turn, source, size), nbytes)
