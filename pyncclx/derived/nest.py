"""Flattened datatypes as strided loops ("nests"), and their combinations."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

MOST_DIMS = 6  # loops of a nest: kMostDims of cuda/derived/nests.cuh
MOST_NESTS = 16  # nests of a datatype, and of a launch: kMostNests

Integers = npt.NDArray[np.int64]
Bounds = tuple[Integers, Integers, Integers]  # packed starts, offsets and lengths of contiguous runs


class Runs:
    """The contiguous runs of an irregular block, in packed order.

    Attributes
    ----------
    table : ndarray of int64, shape (runs, 2)
        Offset of each run in the packed block, and in memory, in bytes.
    key : bytes
        A digest of the table.
    alignment : int
        Bitwise or of all numbers of the table and the packed length. Its lowest set bit is their common alignment.
    """

    def __init__(self, starts: Integers, offsets: Integers, nbytes: int) -> None:
        self.table = np.stack([starts, offsets], axis=1)
        self.key = hashlib.blake2b(self.table.tobytes(), digest_size=16).digest()
        self.alignment = int(np.bitwise_or.reduce(self.table, axis=None)) | nbytes


class Nest(NamedTuple):
    """Strided loops over equal blocks, each contiguous when packed; lengths in bytes."""

    offset: int  # first block in memory
    start: int  # first block in packed memory
    nbytes: int  # length of a block
    dims: tuple[tuple[int, int, int], ...] = ()  # outermost first: count, stride, stride in packed memory
    runs: Runs | None = None  # None: contiguous blocks

    def at(self, offset: int, start: int) -> Nest:
        """Return the nest moved by an offset in memory and in packed memory."""
        return self._replace(offset=self.offset + offset, start=self.start + start)

    @property
    def is_block(self) -> bool:
        """Whether the nest is one contiguous block."""
        return not self.dims and self.runs is None


Nests = tuple[Nest, ...]


def repeat(nests: Nests, size: int, count: int, stride: int) -> Nests:
    """Repeat nests of `size` packed bytes `count` times, `stride` bytes apart."""
    if count == 0:
        return ()
    if count == 1:
        return nests
    return join(_simplified(nest, (count, stride, size)) for nest in nests)


def place(nests: Nests, size: int, stride: int, lengths: Any, displs: Any) -> Nests:
    """Return nests of blocks of `lengths[i]` elements that begin at byte `displs[i]`.

    An element consists of `nests` and has `size` packed bytes. In memory, elements are `stride` bytes apart.
    """
    lengths, displs = np.asarray(lengths, np.int64), np.asarray(displs, np.int64)
    lengths, displs = lengths[lengths > 0], displs[lengths > 0]
    if lengths.size == 0 or size == 0:
        return ()
    steps = np.diff(displs)
    if (lengths == lengths[0]).all() and (steps == steps[:1]).all():
        block = repeat(nests, size, int(lengths[0]), stride)
        many = repeat(block, size * int(lengths[0]), lengths.size, int(steps[0]) if steps.size else 0)
        return tuple(nest.at(int(displs[0]), 0) for nest in many)
    ends = np.cumsum(lengths * size)
    if len(nests) == 1 and nests[0].is_block and nests[0].nbytes == size == stride:
        return _of_runs((ends - lengths * size, displs + nests[0].offset, lengths * size))
    blocks = zip(lengths.tolist(), displs.tolist(), (ends - lengths * size).tolist(), strict=True)
    return join(nest.at(displ, start) for n, displ, start in blocks for nest in repeat(nests, size, n, stride))


def join(nests: Iterable[Nest]) -> Nests:
    """Merge adjacent blocks; replace too many nests by one with irregular runs."""
    joined: list[Nest] = []
    for nest in nests:
        last = joined[-1] if joined else None
        if last and last.is_block and nest.is_block and _follows(last, nest):
            joined[-1] = last._replace(nbytes=last.nbytes + nest.nbytes)
        else:
            joined.append(nest)
    fits = len(joined) <= MOST_NESTS and all(len(nest.dims) <= MOST_DIMS for nest in joined)
    return tuple(joined) if fits else _of_runs(bounds(joined))


def bounds(nests: Sequence[Nest]) -> Bounds:
    """Return the contiguous runs of nests, in packed order."""
    each = [_bounds(nest) for nest in nests]
    starts, offsets, lengths = (np.concatenate(arrays) for arrays in zip(*each, strict=True))
    order = np.argsort(starts, kind="stable")
    return starts[order], offsets[order], lengths[order]


def cut(nests: Nests, nbytes: int) -> Nests:
    """Return the first `nbytes` packed bytes of nests."""
    starts, offsets, lengths = bounds(nests)
    lengths = np.minimum(lengths, nbytes - starts)
    kept = lengths > 0
    return _of_runs((starts[kept], offsets[kept], lengths[kept])) if kept.any() else ()


def _follows(last: Nest, nest: Nest) -> bool:
    return last.offset + last.nbytes == nest.offset and last.start + last.nbytes == nest.start


def _simplified(nest: Nest, outer: tuple[int, int, int]) -> Nest:
    """Return a nest with one more loop, merged with its outermost one if possible."""
    count, stride, packed = outer
    if nest.is_block and stride == packed == nest.nbytes:
        return nest._replace(nbytes=count * nest.nbytes)
    if nest.dims:
        within, step, packed_step = nest.dims[0]
        if stride == within * step and packed == within * packed_step:
            return nest._replace(dims=((count * within, step, packed_step), *nest.dims[1:]))
    return nest._replace(dims=(outer, *nest.dims))


def _bounds(nest: Nest) -> Bounds:
    if nest.runs is None:
        starts, offsets = np.array([nest.start]), np.array([nest.offset])
        lengths = np.array([nest.nbytes])
    else:
        starts, offsets = nest.runs.table[:, 0] + nest.start, nest.runs.table[:, 1] + nest.offset
        lengths = np.diff(starts, append=nest.start + nest.nbytes)
    for count, stride, packed in reversed(nest.dims):
        each = np.arange(count, dtype=np.int64)[:, None]
        starts, offsets = (each * packed + starts).reshape(-1), (each * stride + offsets).reshape(-1)
        lengths = np.tile(lengths, count)
    return starts, offsets, lengths


def _of_runs(runs: Bounds) -> Nests:
    """Return runs as blocks if they are few, else as one irregular block.

    The runs are in packed order, and packed without gaps.
    """
    starts, offsets, lengths = runs
    first = np.flatnonzero(np.append(True, offsets[1:] != offsets[:-1] + lengths[:-1]))
    starts, offsets, lengths = starts[first], offsets[first], np.add.reduceat(lengths, first)
    if first.size <= MOST_NESTS:
        rows = zip(offsets.tolist(), starts.tolist(), lengths.tolist(), strict=True)
        return tuple(Nest(*row) for row in rows)
    begin, nbytes = int(starts[0]), int(lengths.sum())
    return (Nest(0, begin, nbytes, (), Runs(starts - begin, offsets, nbytes)),)
