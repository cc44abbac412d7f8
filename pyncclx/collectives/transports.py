"""Grid and threads of kernels that move data as packets, LL128 lines or chunks.

The grid must be the same on all ranks, so it depends only on what all ranks share. The number of threads may differ.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import lru_cache

from ..launch.call import EARLY_THREADS, MOST_EARLY, Choice
from ..memory.layout import PACK_NBYTES, Layout

# Measured limits; the times are in docs/design_notes.md.
# Longest message sent as packets if ranks have slots for lines (kPacketsNbytes). 2 × H200, 2026-11-22, with kernels
# that start while the previous one runs.
PACKETS_NBYTES = 1 << 10
# Longest part of a block that is sent as LL128 lines if data moves both ways, without and with windows. Longer parts
# are sent as chunks, or straight to windows (kLinesNbytes, kStraightNbytes). 4 × H200, 2026-11-22.
LINES_NBYTES = 48 << 10
STRAIGHT_NBYTES = 24 << 10
# Most bytes that a channel sends and receives with EARLY_THREADS: as lines, and straight to windows. Chunks need more
# warps. 2 × H200, 2026-11-23, early launches on all channels.
EARLY_LINES_NBYTES = 64 << 10
EARLY_STRAIGHT_NBYTES = 256 << 10
# A message uses one channel for each so many bytes; not measured. For lines the number must exceed kPacketsNbytes of
# cuda/protocol/layout.cuh: a block decides by a message's length whether it has arrived as lines.
WORTH_A_CHANNEL_NBYTES = 1024
WORTH_A_CHANNEL_OF_LINES_NBYTES = 2048

MOST_PACKET_THREADS = 256  # threads of a block: kFoldThreads of cuda/protocol/layout.cuh
Choose = Callable[[Layout, int], Choice]  # choice by the bytes of a message


def as_packets(layout: Layout, kernel: str, nbytes: int, messages: int = 1) -> Choice:
    """Choose packets, for short messages, on as many channels as have enough work.

    A rank moves `messages` different messages of `nbytes`.
    """
    each = min(WORTH_A_CHANNEL_NBYTES, layout.slot_nbytes)
    grid = max(1, min(layout.channels, -(-nbytes // each)))
    # The last warp announces the call while the others begin.
    warps = _warps(nbytes, grid, messages) + 1
    why = f"packets, which messages of up to {layout.packet_nbytes} bytes fit"
    return Choice(kernel, grid, min(32 * warps, MOST_PACKET_THREADS), why)


def as_lines(
    layout: Layout,
    kernel: str,
    nbytes: int,
    channel_nbytes: int,
    few_threads_nbytes: int,
    worth_a_channel_nbytes: int = WORTH_A_CHANNEL_NBYTES,
) -> Choice:
    """Choose LL128 lines, for medium messages: at most `channel_nbytes` a channel."""
    grid = max(1, min(layout.channels, -(-nbytes // min(worth_a_channel_nbytes, channel_nbytes))))
    threads = _early_threads(grid, nbytes, few_threads_nbytes)
    return Choice(kernel, grid, threads, "lines of 128 bytes with a flag in each")


def as_chunks(layout: Layout, kernel: str, moved_nbytes: int = sys.maxsize) -> Choice:
    """Choose chunks, for long messages, on all channels; windows are written directly.

    `moved_nbytes` is the sum of what a rank sends and receives.
    """
    why = f"in place where the buffers are in windows, else chunks of {layout.chunk_nbytes} bytes through the heap"
    threads = _early_threads(layout.channels, moved_nbytes, EARLY_STRAIGHT_NBYTES if layout.windows else 0)
    return Choice(kernel, layout.channels, threads, why)


def as_chain(layout: Layout, kernel: str, unit: str = "pieces") -> Choice:
    """Choose a chain, for very long messages from or to one rank, on all channels."""
    return Choice(kernel, layout.channels, None, f"{unit} from rank to rank, through the heap")


def as_spans(
    layout: Layout, kernel: str, nbytes: int, *, long_kernel: str | None = None, both_ways: bool = True
) -> Choice:
    """Choose packets, lines or chunks for messages of at most `nbytes` to each rank.

    If there is a `long_kernel`, it moves chunks, and `kernel` only packets and lines.
    """
    limit_nbytes = (STRAIGHT_NBYTES if layout.windows else LINES_NBYTES) if both_ways else sys.maxsize
    fits_lines = nbytes <= layout.channels * min(layout.line_nbytes, limit_nbytes)
    if nbytes <= layout.packet_nbytes and (nbytes <= PACKETS_NBYTES or not fits_lines):
        return as_packets(layout, kernel, nbytes, layout.size - 1)
    messages = layout.peers * (2 if both_ways else 1)
    if not fits_lines:
        return as_chunks(layout, long_kernel or kernel, nbytes * messages)
    few_threads_nbytes = EARLY_LINES_NBYTES // messages
    return as_lines(layout, kernel, nbytes, layout.line_nbytes, few_threads_nbytes, WORTH_A_CHANNEL_OF_LINES_NBYTES)


def as_announced(layout: Layout, kernel: str, nbytes: int) -> Choice:
    """Choose all channels, for messages whose lengths only the senders have.

    `nbytes` is the length of this rank's longest buffer; it may differ between ranks. Each warp of a block takes time
    to start, so only warps with work are launched.
    """
    grid = layout.channels
    # Rounding up to a power of two at most doubled `nbytes`.
    half = nbytes // 2
    straight = layout.windows and half > STRAIGHT_NBYTES * grid * layout.peers
    threads = _early_threads(grid, nbytes, EARLY_STRAIGHT_NBYTES if straight else EARLY_LINES_NBYTES // 4)
    if threads or nbytes <= WORTH_A_CHANNEL_NBYTES * grid:
        # One more warp copies this rank's own block, and the last one announces the call.
        few = 32 * (_warps(nbytes, grid, layout.peers) + 2)
        threads = min(few, threads or few)
    packets = f"packets for messages of at most {layout.packet_nbytes} bytes"
    why = f"{packets}, longer ones as lines, straight to a window or as chunks, decided on the device"
    return Choice(kernel, grid, threads, why)


def choose_spans(kernel: str, *, both_ways: bool = True) -> Choose:
    """Return a function that chooses one of two kernels by the longest block."""

    @lru_cache
    def choose(layout: Layout, nbytes: int) -> Choice:
        return as_spans(layout, kernel, nbytes, long_kernel=f"{kernel}_long", both_ways=both_ways)

    return choose


def choose_announced(kernel: str) -> Choose:
    """Return a function that chooses threads by the rounded length of the buffers."""

    @lru_cache
    def choose(layout: Layout, nbytes: int) -> Choice:
        return as_announced(layout, kernel, nbytes)

    return choose


def _warps(nbytes: int, grid: int, messages: int) -> int:
    """Return how many warps a block needs so that each lane moves one pack at a time."""
    return -(-nbytes // (grid * 32 * PACK_NBYTES)) * messages


def _early_threads(grid: int, nbytes: int, channel_nbytes: int) -> int | None:
    """Return EARLY_THREADS if they are enough on many channels, else None.

    They are enough if a channel moves at most `channel_nbytes`.
    """
    return EARLY_THREADS if grid > MOST_EARLY and nbytes <= channel_nbytes * grid else None
