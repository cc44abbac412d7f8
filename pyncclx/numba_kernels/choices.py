"""Choice of a kernel written in Python, and of its numbers of blocks and threads.

No limit here was measured on these kernels. How they compare with the built-in ones, as chosen here, is in
examples/benchmarks/results/h200-x2-numba.json (2 x H200, 2026-11-21) and h200-x4-numba.json.
"""

from __future__ import annotations

from functools import lru_cache

from ..launch.call import Choice
from ..memory.layout import Layout
from .workspace import BLOCKS, packet_nbytes

PACKETS_BLOCK_NBYTES = 1024  # least bytes for each block of a message sent as packets; not measured
CHUNKS_BLOCK_NBYTES = 4096  # least bytes for each block of a message sent as chunks; not measured
CHUNKS_THREADS = 512  # threads of a block that moves chunks: the most that the kernel is compiled for
# Longest messages of Allreduce for one shot, by number of ranks, as in collectives/allreduce.py; then for two shots of
# packets. Not measured.
ONE_SHOT_NBYTES = {2: 1 << 20, 3: 128 << 10, 4: 96 << 10}
ONE_SHOT_NBYTES_OF_MANY = 64 << 10
TWO_SHOT_PACKETS_NBYTES = 2 << 20


@lru_cache  # programs call with the same few sizes
def choose_allreduce(layout: Layout, nbytes: int) -> Choice:
    """Choose the kernel of Allreduce: one shot, two shots of packets, or of chunks."""
    limit = min(ONE_SHOT_NBYTES.get(layout.size, ONE_SHOT_NBYTES_OF_MANY), _most_packets(layout))
    if nbytes <= limit:
        return _as_packets(layout, "numba_allreduce_one_shot", nbytes)
    if nbytes <= TWO_SHOT_PACKETS_NBYTES:
        return _as_packets(layout, "numba_allreduce_two_shot_packets", nbytes)
    return _as_chunks(layout, "numba_allreduce_two_shot", nbytes)


@lru_cache
def choose_move(layout: Layout, operation: str, nbytes: int) -> Choice:
    """Choose the blocks of an operation that moves data in packets or chunks."""
    kernel = f"numba_{operation}"
    return (_as_packets if nbytes <= _most_packets(layout) else _as_chunks)(layout, kernel, nbytes)


def choose_barrier(layout: Layout, algorithm: str) -> Choice:
    """Choose one block of one warp for a barrier."""
    return Choice("numba_barrier", 1, 32, "written in Python; one signal to every peer")


def choose_alltoallv(layout: Layout, algorithm: str) -> Choice:
    """Choose all blocks for Alltoallv: the host has no counts to choose fewer by."""
    why = "written in Python; packets or chunks, decided on the device"
    return Choice("numba_alltoallv", _most_blocks(layout), CHUNKS_THREADS, why)


def _most_blocks(layout: Layout) -> int:
    return max(1, BLOCKS // layout.sharing)


def _most_packets(layout: Layout) -> int:
    """Return the length of the longest message that all blocks' packet slots hold."""
    return _most_blocks(layout) * packet_nbytes(layout.size)


def _as_packets(layout: Layout, kernel: str, nbytes: int) -> Choice:
    """Choose blocks for a message in packets: one for each 1024 bytes.

    A block has a warp for each peer, and at least 128 threads, because all of them reduce.
    """
    grid = max(1, min(_most_blocks(layout), -(-nbytes // PACKETS_BLOCK_NBYTES)))
    return Choice(kernel, grid, max(128, 32 * layout.peers), "written in Python; packets")


def _as_chunks(layout: Layout, kernel: str, nbytes: int) -> Choice:
    """Choose blocks for a message in chunks: one for each 4096 bytes."""
    grid = max(1, min(_most_blocks(layout), -(-nbytes // CHUNKS_BLOCK_NBYTES)))
    return Choice(kernel, grid, CHUNKS_THREADS, "written in Python; chunks")
