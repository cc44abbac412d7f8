"""Ladders: the kernels of an operation, each for messages up to some length, and how one is chosen."""

from __future__ import annotations

import sys
from enum import Enum
from typing import NamedTuple

from ..launch.choice import Choice
from ..memory.layout import ROW_PAYLOAD_NBYTES, Layout
from .transports import as_chain, as_chunks, as_lines, as_packets

# Where limits were measured; the times are in docs/design_notes.md.
# 2 × H200, 2026-11-21; Reduce_scatter as packets:
ONE_SHOT_NBYTES = 512 << 10  # of a block that is reduced for one rank: packets are twice the bytes
# 4 × H200, 2026-11-22; lines:
BESIDE_WINDOWS_NBYTES = 2 << 20  # of a vector that is reduced: between windows longer ones are loaded where they are
# 2 × H200, 2026-11-23; early launches of kernels of all channels:
FEW_THREADS_NBYTES = 2 << 10  # reduced for one rank: those kernels are early with all threads, but begin later


class Transport(Enum):
    """How a kernel moves its messages."""

    PACKETS = "packets"
    LINES = "lines"
    CHUNKS = "chunks"
    CHAIN = "chain"


class Rung(NamedTuple):
    """A kernel for messages up to some length: the shorter the message, the lower the rung."""

    kernel: str
    transport: Transport
    limit_nbytes: int  # it is chosen for messages of at most so many bytes, unless a lower rung is
    longest_nbytes: int  # message that it can move
    channel_nbytes: int = 0  # of packets and lines: the longest part of a message that a channel can move
    messages: int = 1  # different ones that a rank sends
    beside_windows_nbytes: int = sys.maxsize  # the limit where there are windows: longer ones are not copied there
    few_threads_nbytes: int = FEW_THREADS_NBYTES  # of lines: the longest part for which EARLY_THREADS are enough


def packets(layout: Layout, kernel: str, limit_nbytes: int, messages: int = 1) -> Rung:
    """A rung for messages that fit the packet slots and `limit_nbytes`."""
    longest_nbytes, channel_nbytes = layout.packet_nbytes, layout.slot_nbytes
    return Rung(kernel, Transport.PACKETS, limit_nbytes, longest_nbytes, channel_nbytes, messages)


def lines(
    layout: Layout,
    kernel: str,
    channel_nbytes: int,
    *,
    limit_nbytes: int = sys.maxsize,
    beside_windows_nbytes: int = sys.maxsize,
    few_threads_nbytes: int = FEW_THREADS_NBYTES,
) -> Rung:
    """A rung for all messages of which a channel has at most `channel_nbytes`; where there are no lines, for none."""
    channel_nbytes = max(0, channel_nbytes)
    return Rung(
        kernel,
        Transport.LINES,
        limit_nbytes=limit_nbytes,
        longest_nbytes=channel_nbytes * layout.channels,
        channel_nbytes=max(1, channel_nbytes),
        beside_windows_nbytes=beside_windows_nbytes,
        few_threads_nbytes=few_threads_nbytes,
    )


def half_of_lines(layout: Layout) -> int:
    """The longest shard of which a slot holds both a contribution and the result, as lines."""
    return layout.slot_rows // 2 * ROW_PAYLOAD_NBYTES


def chunks(kernel: str, limit_nbytes: int = sys.maxsize) -> Rung:
    """A rung for messages of any length."""
    return Rung(kernel, Transport.CHUNKS, limit_nbytes, longest_nbytes=sys.maxsize)


def chain(kernel: str) -> Rung:
    """The highest rung where pieces go from rank to rank."""
    return Rung(kernel, Transport.CHAIN, limit_nbytes=sys.maxsize, longest_nbytes=sys.maxsize)


def climb(operation: str, layout: Layout, nbytes: int, rungs: tuple[Rung, ...], algorithm: str | None) -> Choice:
    """The lowest rung that is meant for a message of `nbytes`, and can move it; or the one named by `algorithm`.

    `operation` begins the names of the rungs' kernels, what follows is the name of an algorithm.

    Raises
    ------
    ValueError
        If there is no such algorithm, or it cannot move the message.
    """
    names = {rung.kernel.removeprefix(f"{operation}_"): rung for rung in rungs}
    if algorithm is not None and algorithm not in names:
        raise ValueError(
            f"{operation.capitalize()}: algorithm is {algorithm!r}; it can be {' or '.join(map(repr, names))}, "
            "or None to let the size decide"
        )
    tuned = dict(layout.limits)
    fitting = (rung for rung in rungs[:-1] if nbytes <= _limit(layout, rung, tuned))
    rung = names[algorithm] if algorithm else next(fitting, rungs[-1])
    if nbytes > rung.longest_nbytes:
        raise ValueError(
            f"{operation.capitalize()}: algorithm={algorithm!r} moves at most {rung.longest_nbytes} bytes here, "
            f"not {nbytes}; leave the choice to the size"
        )
    choice = _on(layout, rung, nbytes)
    reason = "as asked for" if algorithm else _reason(layout, rungs, rung, tuned)
    return choice._replace(why=f"{choice.why}; {reason}")


def _on(layout: Layout, rung: Rung, nbytes: int) -> Choice:
    match rung.transport:
        case Transport.PACKETS:
            return as_packets(layout, rung.kernel, nbytes, rung.messages, rung.channel_nbytes)
        case Transport.LINES:
            return as_lines(layout, rung.kernel, nbytes, rung.channel_nbytes, rung.few_threads_nbytes)
        case Transport.CHUNKS:
            return as_chunks(layout, rung.kernel)
        case Transport.CHAIN:
            return as_chain(layout, rung.kernel)


def _limit(layout: Layout, rung: Rung, tuned: dict[str, int]) -> int:
    """The longest message that a rung is chosen for, unless a lower one is."""
    beside_windows_nbytes = rung.beside_windows_nbytes if layout.windows else sys.maxsize
    return min(tuned.get(rung.kernel, rung.limit_nbytes), rung.longest_nbytes, beside_windows_nbytes)


def _reason(layout: Layout, rungs: tuple[Rung, ...], chosen: Rung, tuned: dict[str, int]) -> str:
    """What decided for a rung: the longest message for it, or for the one below the highest."""
    last = chosen if chosen.transport in (Transport.PACKETS, Transport.LINES) else rungs[-2]
    source = "the measured table" if last.kernel in tuned else "the built-in rule"
    return f"{source} has {last.kernel} up to {_limit(layout, last, tuned)} bytes"
