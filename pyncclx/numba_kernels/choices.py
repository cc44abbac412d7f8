"""Which of the kernels written in Python runs for which message, and on how many blocks.

No limit here was measured on these kernels. How they compare with the built-in ones, as chosen here, is in
examples/benchmarks/results/h200-x2-numba.json (2 x H200, 2026-11-21) and h200-x4-numba.json.
"""

from __future__ import annotations

from functools import lru_cache

from ..launch.choice import Choice
from ..memory.layout import Layout
from .workspace import BLOCKS, packet_nbytes

PACKETS_BLOCK_NBYTES = 1024  # of a message that goes as packets, for each block; not measured
CHUNKS_BLOCK_NBYTES = 4096  # of one that goes as chunks; not measured
CHUNKS_THREADS = 512  # of a block that moves chunks: the most that the kernel is compiled for
# Of Allreduce, by ranks: up to here one shot, as in collectives/allreduce.py; then up to here packets. Not measured.
ONE_SHOT_NBYTES = {2: 1 << 20, 3: 128 << 10, 4: 96 << 10}
ONE_SHOT_NBYTES_OF_MANY = 64 << 10
TWO_SHOT_PACKETS_NBYTES = 2 << 20


@lru_cache  # the same few sizes come again and again
def choose_allreduce(layout: Layout, nbytes: int) -> Choice:
    """One shot while short, then two shots of packets, of chunks when long."""
    limit = min(ONE_SHOT_NBYTES.get(layout.size, ONE_SHOT_NBYTES_OF_MANY), _most_packets(layout))
    if nbytes <= limit:
        return _as_packets(layout, "numba_allreduce_one_shot", nbytes)
    if nbytes <= TWO_SHOT_PACKETS_NBYTES:
        return _as_packets(layout, "numba_allreduce_two_shot_packets", nbytes)
    return _as_chunks(layout, "numba_allreduce_two_shot", nbytes)


@lru_cache
def choose_move(layout: Layout, operation: str, nbytes: int) -> Choice:
    """As many blocks as pay; each decides whether its part goes as packets."""
    kernel = f"numba_{operation}"
    return (_as_packets if nbytes <= _most_packets(layout) else _as_chunks)(layout, kernel, nbytes)


def choose_barrier(layout: Layout, algorithm: str) -> Choice:
    """One block."""
    return Choice("numba_barrier", 1, 32, "written in Python; one signal to every peer")


def choose_alltoallv(layout: Layout, algorithm: str) -> Choice:
    """All blocks: how much two ranks exchange is in device memory only."""
    why = "written in Python; packets or chunks, decided on the device"
    return Choice("numba_alltoallv", _most_blocks(layout), CHUNKS_THREADS, why)


def _most_blocks(layout: Layout) -> int:
    return max(1, BLOCKS // layout.sharing)


def _most_packets(layout: Layout) -> int:
    """The longest message that the packet slots of all blocks hold."""
    return _most_blocks(layout) * packet_nbytes(layout.size)


def _as_packets(layout: Layout, kernel: str, nbytes: int) -> Choice:
    """As few blocks as there is work for; a warp for each peer, and some to fold."""
    grid = max(1, min(_most_blocks(layout), -(-nbytes // PACKETS_BLOCK_NBYTES)))
    return Choice(kernel, grid, max(128, 32 * layout.peers), "written in Python; packets")


def _as_chunks(layout: Layout, kernel: str, nbytes: int) -> Choice:
    grid = max(1, min(_most_blocks(layout), -(-nbytes // CHUNKS_BLOCK_NBYTES)))
    return Choice(kernel, grid, CHUNKS_THREADS, "written in Python; chunks")
