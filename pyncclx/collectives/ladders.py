"""How an operation runs: by which kernel, on how many blocks of how many threads.

Every rank comes to the same choice from what all ranks know, but for the threads, which are each rank's own affair.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import NamedTuple

from ..arrays.buffers import Buffer
from ..launch.choice import EARLY_THREADS, MOST_EARLY, Choice
from ..memory.layout import PACK_NBYTES, ROW_PAYLOAD, Layout

# Bytes a channel should have to move before one more channel pays.
WORTH_A_CHANNEL = 1024
MOST_THREADS = 256  # of a block that moves packets; kFoldThreads of cuda/protocol/layout.cuh
ONE_SHOT_NBYTES = 512 << 10  # of a block that is reduced for one rank: packets are twice the bytes
PACKETS_NBYTES = 1 << 10  # of a message: longer ones go as lines, where there are; kPacketsNbytes
BESIDE_WINDOWS_NBYTES = 2 << 20  # of a vector that is reduced: between windows longer ones are loaded where they are
WORTH_A_CHANNEL_OF_LINES = (
    2048  # of a longer one: more than kPacketsNbytes of cuda/protocol/layout.cuh, so that a block sees it
)
LINES_NBYTES = 48 << 10  # of a block's part, if parts go both ways: longer ones go as chunks; kLinesNbytes
STRAIGHT_NBYTES = 24 << 10  # or, where there are windows, straight; kStraightNbytes
EARLY_LINES = 64 << 10  # that leave as lines, and come
EARLY_STRAIGHT = 256 << 10  # or, where there are windows, go straight; as chunks they need the other warps
FEW_FOLD = 2 << 10  # that are reduced for one rank: those kernels are early with all threads, but begin later


class Rung(NamedTuple):
    """A kernel for messages up to some length: the shorter the message, the lower the rung."""

    kernel: str
    chosen: int  # for messages of at most so many bytes, unless a lower rung is
    most: int  # the longest message that it can move, in bytes
    channel_most: int  # and the longest part of one that a channel can; 0: a pipeline, which takes all channels
    messages: int = 1  # different ones that a rank sends
    lines: bool = False  # goes as lines, not as packets
    chain: bool = False  # goes from rank to rank, not as chunks between all
    beside_windows: int = sys.maxsize  # the longest where there are windows, between which longer ones are not copied
    few_most: int = FEW_FOLD  # of lines: the longest part of one for which EARLY_THREADS are enough


def as_packets(layout: Layout, kernel: str, nbytes: int, messages: int = 1, channel_most: int | None = None) -> Choice:
    """Small: as few channels as hold the message, more where each still has something to do.

    A rank has `messages` different messages of `nbytes` to move, a channel at most `channel_most` bytes of one.
    """
    each = min(WORTH_A_CHANNEL, layout.slot_nbytes if channel_most is None else channel_most)
    grid = max(1, min(layout.channels, -(-nbytes // each)))
    warps = _warps(nbytes, grid, messages) + 1  # the last announces, while the others begin
    why = f"packets, which messages of up to {layout.packet_nbytes} bytes fit"
    return Choice(kernel, grid, min(32 * warps, MOST_THREADS), why)


def _warps(nbytes: int, grid: int, messages: int) -> int:
    """Of a block, as many as have a pack for each lane, of its part of each of `messages` messages of `nbytes`."""
    return -(-nbytes // (grid * 32 * PACK_NBYTES)) * messages


def as_lines(
    layout: Layout,
    kernel: str,
    nbytes: int,
    channel_most: int,
    few_most: int,
    worth_a_channel: int = WORTH_A_CHANNEL,
) -> Choice:
    """Of medium length: as many channels as have something to do."""
    grid = max(1, min(layout.channels, -(-nbytes // min(worth_a_channel, channel_most))))
    threads = _early_threads(grid, nbytes, few_most)
    return Choice(kernel, grid, threads, "lines of 128 bytes with a flag in each")


def as_chunks(layout: Layout, kernel: str, moved: int = sys.maxsize) -> Choice:
    """Large: all channels. `moved`: bytes that leave this rank and come, where they may go straight to a window."""
    why = f"in place where the buffers are in windows, else chunks of {layout.chunk_nbytes} bytes through the heap"
    threads = _early_threads(layout.channels, moved, EARLY_STRAIGHT if layout.windows else 0)
    return Choice(kernel, layout.channels, threads, why)


def _early_threads(grid: int, nbytes: int, channel_most: int) -> int | None:
    """Few enough for a launch of all channels to be early, if a channel has no more than so many bytes to move."""
    return EARLY_THREADS if grid > MOST_EARLY and nbytes <= channel_most * grid else None


def as_announced(layout: Layout, kernel: str, nbytes: int) -> Choice:
    """Messages that bring their lengths: all channels, for no rank knows what the others send.

    Of a rank whose buffers hold `nbytes` at most, which is its own affair, as many threads as have something to do:
    each warp of a block takes its time for what all of them ask first.
    """
    grid = layout.channels
    half = nbytes // 2  # `most_of` has doubled it, at most
    straight = layout.windows and half > STRAIGHT_NBYTES * grid * layout.peers
    threads = _early_threads(grid, nbytes, EARLY_STRAIGHT if straight else EARLY_LINES // 4)
    if threads or nbytes <= WORTH_A_CHANNEL * grid:
        few = 32 * (_warps(nbytes, grid, layout.peers) + 2)  # one warp copies what stays, the last announces
        threads = min(few, threads or few)
    packets = f"packets for messages of at most {layout.packet_nbytes} bytes"
    why = f"{packets}, longer ones as lines, straight to a window or as chunks, decided on the device"
    return Choice(kernel, grid, threads, why)


def most_of(buffers: Iterable[Buffer]) -> int:
    """No less than the bytes of the longest buffer: a power of two, so that there are few plans."""
    return 1 << max(buffer.nbytes for buffer in buffers).bit_length()


def as_spans(layout: Layout, kernel: str, nbytes: int, *, both_ways: bool = True) -> Choice:
    """Messages of at most `nbytes` to each rank: packets, lines or chunks; the kernel does all of them."""
    most = (STRAIGHT_NBYTES if layout.windows else LINES_NBYTES) if both_ways else sys.maxsize
    fits_lines = nbytes <= layout.channels * min(layout.line_nbytes, most)
    if nbytes <= layout.packet_nbytes and (nbytes <= PACKETS_NBYTES or not fits_lines):
        return as_packets(layout, kernel, nbytes, layout.size - 1)
    messages = layout.peers * (2 if both_ways else 1)
    if not fits_lines:
        return as_chunks(layout, kernel, nbytes * messages)
    return as_lines(layout, kernel, nbytes, layout.line_nbytes, EARLY_LINES // messages, WORTH_A_CHANNEL_OF_LINES)


def by_length(
    layout: Layout, nbytes: int, small: str, large: str, algorithm: str | None, limit: int, messages: int = 1
) -> Choice:
    """`small` if a message of `nbytes` fits the packet slots and `limit`, else `large`; or as the caller wants."""
    rungs = (Rung(small, limit, layout.packet_nbytes, layout.slot_nbytes, messages), pipeline(large))
    return climb(layout, nbytes, rungs, algorithm)


def in_lines(layout: Layout, kernel: str, channel_most: int, beside_windows: int = sys.maxsize) -> Rung:
    """A rung for all messages of which a channel has at most so many bytes; where there are no lines, for none."""
    most = max(0, channel_most)
    return Rung(kernel, sys.maxsize, most * layout.channels, max(1, most), lines=True, beside_windows=beside_windows)


def half_of_lines(layout: Layout) -> int:
    """The longest shard of which a slot holds both a contribution and the result, as lines."""
    return layout.slot_rows // 2 * ROW_PAYLOAD


def pipeline(kernel: str) -> Rung:
    """The highest rung: messages of any length."""
    return Rung(kernel, sys.maxsize, sys.maxsize, 0)


def chain(kernel: str) -> Rung:
    """The same for pieces that go from rank to rank."""
    return pipeline(kernel)._replace(chain=True)


def climb(layout: Layout, nbytes: int, rungs: tuple[Rung, ...], algorithm: str | None) -> Choice:
    """The lowest rung that is meant for a message of `nbytes`, and can move it; or as the caller wants.

    Raises
    ------
    ValueError
        If there is no such algorithm, or it cannot move the message.
    """
    operation = rungs[0].kernel.removesuffix(f"_{_short(rungs[0].kernel)}")
    names = {rung.kernel.removeprefix(f"{operation}_"): rung for rung in rungs}
    if algorithm is not None and algorithm not in names:
        raise ValueError(
            f"{operation.capitalize()}: algorithm is {algorithm!r}; it can be {' or '.join(map(repr, names))}, "
            "or None to let the size decide"
        )
    tuned = dict(layout.limits)
    fitting = (r for r in rungs[:-1] if nbytes <= _limit(layout, r, tuned))
    rung = names[algorithm] if algorithm else next(fitting, rungs[-1])
    if nbytes > rung.most:
        raise ValueError(
            f"{operation.capitalize()}: algorithm={algorithm!r} moves at most {rung.most} bytes here, "
            f"not {nbytes}; leave the choice to the size"
        )
    if rung.lines:
        choice = as_lines(layout, rung.kernel, nbytes, rung.channel_most, rung.few_most)
    elif rung.chain:
        choice = Choice(rung.kernel, layout.channels, None, "pieces from rank to rank, through the heap")
    elif rung.channel_most:
        choice = as_packets(layout, rung.kernel, nbytes, rung.messages, rung.channel_most)
    else:
        choice = as_chunks(layout, rung.kernel)
    return choice._replace(why=f"{choice.why}; {'as asked for' if algorithm else _cut(layout, rungs, rung, tuned)}")


def _limit(layout: Layout, rung: Rung, tuned: dict[str, int]) -> int:
    """The longest message that a rung is chosen for, unless a lower one is."""
    return min(tuned.get(rung.kernel, rung.chosen), rung.most, rung.beside_windows if layout.windows else sys.maxsize)


def _cut(layout: Layout, rungs: tuple[Rung, ...], chosen: Rung, tuned: dict[str, int]) -> str:
    """What decided for a rung: the longest message for it, or for the one below the highest, and who says so."""
    last = chosen if chosen.channel_most else rungs[-2]
    source = "the measured table" if last.kernel in tuned else "the built-in rule"
    return f"{source} has {last.kernel} up to {_limit(layout, last, tuned)} bytes"


def _short(kernel: str) -> str:
    return next(kernel[-len(end) :] for end in ("one_shot", "direct") if kernel.endswith(end))
