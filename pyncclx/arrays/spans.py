"""Byte range of a buffer argument relative to its array, whatever its length."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

from mpi4py import MPI

from . import datatypes
from .specs import spec_parts

__all__ = ["span_of"]

_NOTHING = (0, 0)


def span_of(spec: Any, blocks: int) -> tuple[int, int]:
    """Return begin and end of the bytes that a buffer argument selects.

    Both are 0 if only the array has a length. The begin is negative for a datatype with a negative stride.

    Parameters
    ----------
    spec : buffer spec, any datatype, or one with counts, displacements and datatypes for each block
    blocks : int
        Number of blocks, for an argument with one count for all blocks.
    """
    if not isinstance(spec, (list, tuple)) or len(spec) < 2:
        return _NOTHING
    if _are_types(spec[-1]):
        return _around(_of_each(spec))
    _, counts, displs, key = spec_parts(spec, lists=False)
    if counts is None:
        return _NOTHING
    bounds = _bounds(key)
    extent = bounds[-1]
    if not hasattr(counts, "__len__"):
        displ = 0 if displs is None or hasattr(displs, "__len__") else operator.index(displs)
        return _around([_elements(displ * extent, operator.index(counts) * blocks, *bounds)])
    starts: Any = displs if displs is not None else [sum(counts[:rank]) for rank in range(len(counts))]
    if not hasattr(starts, "__len__"):
        starts = [operator.index(starts) * rank for rank in range(len(counts))]
    return _around(_elements(displ * extent, count, *bounds) for count, displ in zip(counts, starts, strict=False))


def _around(spans: Iterable[tuple[int, int]]) -> tuple[int, int]:
    begins, ends = zip(_NOTHING, *spans, strict=True)
    return min(begins), max(ends)


def _are_types(last: Any) -> bool:
    """Return whether the last part of an argument is a list of datatypes, not counts."""
    return isinstance(last, (list, tuple)) and any(isinstance(each, (MPI.Datatype, str)) for each in last)


def _of_each(spec: Sequence[Any]) -> list[tuple[int, int]]:
    """Return the byte ranges of an argument of Alltoallw; displacements are bytes."""
    _, *between, types = spec
    counts, displs = between[0] if len(between) == 1 else between or ([1] * len(types), [0] * len(types))
    return [_elements(displ, count, *_bounds(key)) for count, displ, key in zip(counts, displs, types, strict=False)]


def _elements(begin: int, count: int, lower: int, upper: int, extent: int) -> tuple[int, int]:
    if count <= 0:
        return _NOTHING
    last = (count - 1) * extent
    return int(begin + lower + min(last, 0)), int(begin + upper + max(last, 0))


def _bounds(key: Any) -> tuple[int, int, int]:
    """Return begin and end of an element, and the distance to the next element."""
    if isinstance(key, MPI.Datatype):
        lower, length = key.Get_true_extent()
        return lower, lower + length, key.Get_extent()[1]
    itemsize = 1 if key is None else datatypes.of(key).itemsize
    return 0, itemsize, itemsize
