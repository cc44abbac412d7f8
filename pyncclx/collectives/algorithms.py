"""Tables of algorithms: choose an operation's kernel by message length."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from ..launch.call import Choice
from ..memory.layout import ROW_PAYLOAD_NBYTES, Layout
from .transports import as_chain, as_chunks, as_lines, as_packets

# Measured limits; the times are in docs/design_notes.md.
# Longest block that is reduced for one rank as packets, which double the bytes sent. 2 × H200, 2026-11-21.
ONE_SHOT_NBYTES = 512 << 10
# Longest vector in windows that is reduced as LL128 lines; kernels read longer vectors in place. 4 × H200, 2026-11-22.
BESIDE_WINDOWS_NBYTES = 2 << 20
# Most bytes reduced for one rank for which EARLY_THREADS threads on all channels are enough. Blocks with more threads
# can also be launched early, but they start later. 2 × H200, 2026-11-23.
FEW_THREADS_NBYTES = 2 << 10
CHAIN_ROWS = 4  # rows that a slot needs for a chain of LL128 lines: kBatchRows of cuda/protocol/line_chain.cuh
# Most ranks for which a chain of LL128 lines is chosen. More ranks were not measured; each further trip adds 5 us.
CHAIN_LINES_RANKS = 4


class Algorithm(NamedTuple):
    """An algorithm of a table: a kernel for messages up to some length."""

    kernel: str
    grid_of: Callable[[int], Choice]  # chooses the kernel's grid by the bytes of a message
    limit_nbytes: int  # longest message for which the algorithm is chosen
    longest_nbytes: int  # longest message that the algorithm can move
    beside_windows_nbytes: int = sys.maxsize  # limit where the communicator has windows


def packets(layout: Layout, kernel: str, limit_nbytes: int, messages: int = 1) -> Algorithm:
    """Return the algorithm for messages that fit the packet slots and `limit_nbytes`.

    A rank sends `messages` different messages.
    """
    grid_of = partial(as_packets, layout, kernel, messages=messages)
    return Algorithm(kernel, grid_of, limit_nbytes, layout.packet_nbytes)


def lines(
    layout: Layout,
    kernel: str,
    channel_nbytes: int,
    *,
    limit_nbytes: int = sys.maxsize,
    beside_windows_nbytes: int = sys.maxsize,
    few_threads_nbytes: int = FEW_THREADS_NBYTES,
) -> Algorithm:
    """Return the algorithm for LL128 lines, at most `channel_nbytes` a channel.

    If ranks have no slots for lines, it is never chosen. Up to `few_threads_nbytes`, EARLY_THREADS threads are enough.
    """
    grid_of = partial(
        as_lines,
        layout,
        kernel,
        channel_nbytes=max(1, channel_nbytes),
        few_threads_nbytes=few_threads_nbytes,
    )
    longest_nbytes = max(0, channel_nbytes) * layout.channels
    return Algorithm(kernel, grid_of, limit_nbytes, longest_nbytes, beside_windows_nbytes)


def half_of_lines(layout: Layout) -> int:
    """Return the longest shard whose input and result fit one slot as LL128 lines."""
    return layout.slot_rows // 2 * ROW_PAYLOAD_NBYTES


def chunks(layout: Layout, kernel: str, limit_nbytes: int = sys.maxsize) -> Algorithm:
    """Return the algorithm that moves messages as chunks.

    It can move any length, but is chosen up to `limit_nbytes` only.
    """
    return Algorithm(kernel, lambda _: as_chunks(layout, kernel), limit_nbytes, longest_nbytes=sys.maxsize)


def chain(layout: Layout, kernel: str) -> Algorithm:
    """Return the algorithm for the longest messages, a chain from rank to rank."""
    return Algorithm(kernel, lambda _: as_chain(layout, kernel), sys.maxsize, longest_nbytes=sys.maxsize)


def chain_of_lines(layout: Layout, kernel: str, limit_nbytes: int) -> Algorithm:
    """Return the algorithm for long messages: a chain of LL128 lines.

    If slots for lines have fewer than CHAIN_ROWS rows, it is never chosen.
    """
    longest_nbytes = sys.maxsize if layout.slot_rows >= CHAIN_ROWS else 0
    return Algorithm(kernel, lambda _: as_chain(layout, kernel, "lines"), limit_nbytes, longest_nbytes)


def choose_from(
    table: tuple[Algorithm, ...], operation: str, layout: Layout, nbytes: int, algorithm: str | None
) -> Choice:
    """Choose the first algorithm for `nbytes`, or the one named `algorithm`.

    The table lists algorithms for short messages first. An algorithm's name is its kernel's name without `operation`
    and the underscore after it.

    Raises
    ------
    ValueError
        If there is no such algorithm, or it cannot move the message.
    """
    names = {each.kernel.removeprefix(f"{operation}_"): each for each in table}
    if algorithm is not None and algorithm not in names:
        raise ValueError(
            f"{operation.capitalize()}: algorithm is {algorithm!r}; it can be {' or '.join(map(repr, names))}, "
            "or None to let the size decide"
        )
    tuned = dict(layout.limits)
    fitting = (each for each in table[:-1] if nbytes <= _limit(layout, each, tuned))
    chosen = names[algorithm] if algorithm else next(fitting, table[-1])
    if nbytes > chosen.longest_nbytes:
        raise ValueError(
            f"{operation.capitalize()}: algorithm={algorithm!r} moves at most {chosen.longest_nbytes} bytes here, "
            f"not {nbytes}; omit it to let the size decide"
        )
    choice = chosen.grid_of(nbytes)
    reason = "as asked for" if algorithm else _reason(layout, table, chosen, tuned)
    return choice._replace(why=f"{choice.why}; {reason}")


def _limit(layout: Layout, algorithm: Algorithm, tuned: dict[str, int]) -> int:
    """Return the longest message that an algorithm is chosen for."""
    beside_windows_nbytes = algorithm.beside_windows_nbytes if layout.windows else sys.maxsize
    return min(tuned.get(algorithm.kernel, algorithm.limit_nbytes), algorithm.longest_nbytes, beside_windows_nbytes)


def _reason(layout: Layout, table: tuple[Algorithm, ...], chosen: Algorithm, tuned: dict[str, int]) -> str:
    """Return which limit decided for an algorithm, as a text for `explain`."""
    last = table[-2] if chosen is table[-1] else chosen
    source = "the measured table" if last.kernel in tuned else "the built-in rule"
    return f"{source} has {last.kernel} up to {_limit(layout, last, tuned)} bytes"
