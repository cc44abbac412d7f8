"""Plan which bytes ranks send when a model's matrices are divided differently."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from common.program import share

Array = Any  # NumPy's
RUN = np.dtype([("to", "u8"), ("source", "u8"), ("nbytes", "u8"), ("peer", "i8")])
LONGEST = 16384  # bytes of a run: one warp puts them at a time
ITEM = 4  # bytes of a number
BY_POSITION = 0x85EBCA6B  # odd, so that all numbers of a version differ


class Matrix(NamedTuple):
    """Rows, columns, and the one that generators divide; None: each generator has all."""

    rows: int
    columns: int
    divided: int | None


class Box(NamedTuple):
    """A part of a matrix: first row and count, first column and count."""

    row: int
    rows: int
    column: int
    columns: int


class Shard:
    """One rank's parts of all matrices, one after the other.

    Parameters
    ----------
    matrices : sequence of Matrix
    boxes : list of Box
        One for each.
    """

    def __init__(self, matrices: Sequence[Matrix], boxes: list[Box]) -> None:
        self.matrices, self.boxes = matrices, boxes
        ends = np.cumsum([box.rows * box.columns for box in boxes])
        self.begins, self.count = [0, *map(int, ends[:-1])], int(ends[-1])

    def positions(self) -> Array:
        """Return a different integer for each number, from its place in the model."""
        numbers, first = np.empty(self.count, "u4"), 0
        for matrix, box, begin in zip(self.matrices, self.boxes, self.begins, strict=True):
            rows = first + matrix.columns * np.arange(box.row, box.row + box.rows, dtype="u4")[:, None]
            values = (rows + np.arange(box.column, box.column + box.columns, dtype="u4")) * np.uint32(BY_POSITION)
            numbers[begin : begin + values.size] = values.ravel()
            first += matrix.rows * matrix.columns
        return numbers


def model(hidden: int) -> list[Matrix]:
    """Return a transformer layer: attention, feed-forward network and norm."""
    shapes = [(3 * hidden, hidden, 0), (hidden, hidden, 1), (4 * hidden, hidden, 0), (hidden, 4 * hidden, 1)]
    return [*(Matrix(*shape) for shape in shapes), Matrix(1, hidden, None)]


def trainer(matrices: Sequence[Matrix], parts: int, part: int) -> Shard:
    """Return a trainer's shard: some rows of each matrix."""
    return Shard(matrices, [Box(*share(each.rows, parts, part), 0, each.columns) for each in matrices])


def generator(matrices: Sequence[Matrix], parts: int, part: int) -> Shard:
    """Return a generator's shard: some rows, some columns, or all of each matrix."""
    boxes = []
    for each in matrices:
        rows = share(each.rows, parts, part) if each.divided == 0 else (0, each.rows)
        columns = share(each.columns, parts, part) if each.divided == 1 else (0, each.columns)
        boxes.append(Box(*rows, *columns))
    return Shard(matrices, boxes)


def common(a: Box, b: Box) -> Box:
    """Return the intersection of two parts of a matrix; it may be empty."""
    row, column = max(a.row, b.row), max(a.column, b.column)
    rows = min(a.row + a.rows, b.row + b.rows) - row
    columns = min(a.column + a.columns, b.column + b.columns) - column
    return Box(row, max(rows, 0), column, max(columns, 0))


def plan(
    mine: Shard, theirs: Sequence[Shard], source: int, to: int, first: int, item: int = ITEM, longest: int = LONGEST
) -> Array:
    """Return the runs that move a trainer's weights to the generators.

    Parameters
    ----------
    mine : Shard
        The trainer's.
    theirs : sequence of Shard
        The generators', whose ranks begin with `first`.
    source, to : int
        Addresses of the first number, here and there.
    item, longest : int
        Bytes of a number, and of the longest run.

    Returns
    -------
    array of RUN
        All generators' runs mixed, so that none is idle while another one's link is full.
    """
    lists = []
    for number, shard in enumerate(theirs):
        parts = [
            cut(a, source + item * begin, b, to + item * there, first + number, item, longest)
            for a, b, begin, there in zip(mine.boxes, shard.boxes, mine.begins, shard.begins, strict=True)
        ]
        lists.append(np.concatenate(parts))
    turns = np.concatenate([np.arange(len(runs)) / max(len(runs), 1) for runs in lists])
    return np.concatenate(lists)[np.argsort(turns, kind="stable")]


def cut(a: Box, source: int, b: Box, to: int, peer: int, item: int, longest: int) -> Array:
    """Return the runs of the intersection of two parts of a matrix, for two addresses."""
    both = common(a, b)
    lines, length = both.rows, item * both.columns
    # Whole rows are contiguous.
    if both.columns == a.columns == b.columns:
        lines, length = min(lines, 1), lines * length
    line, begins = np.arange(lines)[:, None], np.arange(0, length, longest)
    runs = np.empty((lines, len(begins)), RUN)
    for name, part, address in (("source", a, source), ("to", b, to)):
        first = address + item * ((both.row - part.row) * part.columns + both.column - part.column)
        runs[name] = first + item * part.columns * line + begins
    runs["nbytes"] = np.minimum(longest, length - begins)
    runs["peer"] = peer
    return runs.ravel()


def views(shard: Shard, numbers: Any, wanted: Shard, into: Any) -> list[tuple[Any, Any]]:
    """Return the intersection of two shards, as pairs of views: target and source."""
    pairs = []
    for number, (a, b) in enumerate(zip(shard.boxes, wanted.boxes, strict=True)):
        both, ends = common(a, b), []
        for part, begin, array in ((b, wanted.begins[number], into), (a, shard.begins[number], numbers)):
            whole = array[begin : begin + part.rows * part.columns].reshape(part.rows, part.columns)
            row, column = both.row - part.row, both.column - part.column
            ends.append(whole[row : row + both.rows, column : column + both.columns])
        pairs.append((ends[0], ends[1]))
    return pairs
