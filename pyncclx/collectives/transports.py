"""How data travels: on how many blocks of how many threads a kernel moves it as packets, lines or chunks.

The grid must be the same on all ranks, and depends only on what all ranks have. The number of threads may differ.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import lru_cache

from ..launch.choice import EARLY_THREADS, MOST_EARLY, Choice
from ..memory.layout import PACK_NBYTES, Layout

# Where limits were measured; the times are in docs/design_notes.md.
# 2 × H200, 2026-11-22; what kernels do while the one before them runs:
PACKETS_NBYTES = 1 << 10  # of a message: longer ones go as lines, where there are; kPacketsNbytes
# 4 × H200, 2026-11-22; lines:
LINES_NBYTES = 48 << 10  # of a block's part, if parts go both ways: longer ones go as chunks; kLinesNbytes
STRAIGHT_NBYTES = 24 << 10  # or, where there are windows, straight; kStraightNbytes
# 2 × H200, 2026-11-23; early launches of kernels of all channels:
EARLY_LINES_NBYTES = 64 << 10  # sent and received as lines, for which EARLY_THREADS are enough
EARLY_STRAIGHT_NBYTES = 256 << 10  # or, where there are windows, straight; as chunks they need the other warps
# Not measured:
WORTH_A_CHANNEL_NBYTES = 1024  # that one more channel should have to move
WORTH_A_CHANNEL_OF_LINES_NBYTES = 2048  # more than kPacketsNbytes of cuda/protocol/layout.cuh, so that a block sees it

MOST_PACKET_THREADS = 256  # of a block; kFoldThreads of cuda/protocol/layout.cuh
Choose = Callable[[Layout, int], Choice]  # of an operation, by the bytes of its message


def as_packets(
    layout: Layout, kernel: str, nbytes: int, messages: int = 1, channel_nbytes: int | None = None
) -> Choice:
    """Small: as few channels as hold the message, more where each still has something to do.

    A rank has `messages` different messages of `nbytes` to move, a channel at most `channel_nbytes` of one.
    """
    each = min(WORTH_A_CHANNEL_NBYTES, layout.slot_nbytes if channel_nbytes is None else channel_nbytes)
    grid = max(1, min(layout.channels, -(-nbytes // each)))
    warps = _warps(nbytes, grid, messages) + 1  # the last announces, while the others begin
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
    """Of medium length: as many channels as have something to do, each with at most `channel_nbytes`."""
    grid = max(1, min(layout.channels, -(-nbytes // min(worth_a_channel_nbytes, channel_nbytes))))
    threads = _early_threads(grid, nbytes, few_threads_nbytes)
    return Choice(kernel, grid, threads, "lines of 128 bytes with a flag in each")


def as_chunks(layout: Layout, kernel: str, moved_nbytes: int = sys.maxsize) -> Choice:
    """Large: all channels. `moved_nbytes`: sent and received, where it may go straight to a window."""
    why = f"in place where the buffers are in windows, else chunks of {layout.chunk_nbytes} bytes through the heap"
    threads = _early_threads(layout.channels, moved_nbytes, EARLY_STRAIGHT_NBYTES if layout.windows else 0)
    return Choice(kernel, layout.channels, threads, why)


def as_chain(layout: Layout, kernel: str) -> Choice:
    """Very large, from one rank or to one: all channels."""
    return Choice(kernel, layout.channels, None, "pieces from rank to rank, through the heap")


def as_spans(
    layout: Layout, kernel: str, nbytes: int, *, long_kernel: str | None = None, both_ways: bool = True
) -> Choice:
    """Messages of at most `nbytes` to each rank: packets, lines or chunks; the kernel does all of them.

    With a `long_kernel` that does, and `kernel` packets and lines alone.
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
    """Messages that bring their lengths: all channels, for no rank has the lengths of what it receives.

    `nbytes` is the most that this rank's buffers hold; other ranks may have another. It takes as many threads as have
    something to do, for each warp of a block costs time at the beginning.
    """
    grid = layout.channels
    half = nbytes // 2  # it was doubled at most, when it was rounded up
    straight = layout.windows and half > STRAIGHT_NBYTES * grid * layout.peers
    threads = _early_threads(grid, nbytes, EARLY_STRAIGHT_NBYTES if straight else EARLY_LINES_NBYTES // 4)
    if threads or nbytes <= WORTH_A_CHANNEL_NBYTES * grid:
        few = 32 * (_warps(nbytes, grid, layout.peers) + 2)  # one warp copies what stays, the last announces
        threads = min(few, threads or few)
    packets = f"packets for messages of at most {layout.packet_nbytes} bytes"
    why = f"{packets}, longer ones as lines, straight to a window or as chunks, decided on the device"
    return Choice(kernel, grid, threads, why)


def choose_spans(kernel: str, *, both_ways: bool = True) -> Choose:
    """The `choose` of an operation with two kernels by `as_spans`, by the bytes of its longest block."""

    @lru_cache  # the same few sizes come again and again
    def choose(layout: Layout, nbytes: int) -> Choice:
        return as_spans(layout, kernel, nbytes, long_kernel=f"{kernel}_long", both_ways=both_ways)

    return choose


def choose_announced(kernel: str) -> Choose:
    """The `choose` of an operation by `as_announced`, by the bytes of this rank's longest buffer, rounded up."""

    @lru_cache  # the same few sizes come again and again
    def choose(layout: Layout, nbytes: int) -> Choice:
        return as_announced(layout, kernel, nbytes)

    return choose


def _warps(nbytes: int, grid: int, messages: int) -> int:
    """Of a block, as many as have a pack for each lane, of its part of each of `messages` messages of `nbytes`."""
    return -(-nbytes // (grid * 32 * PACK_NBYTES)) * messages


def _early_threads(grid: int, nbytes: int, channel_nbytes: int) -> int | None:
    """Few enough for an early launch on all channels, if a channel has at most `channel_nbytes` to move."""
    return EARLY_THREADS if grid > MOST_EARLY and nbytes <= channel_nbytes * grid else None
