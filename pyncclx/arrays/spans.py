"""How far a buffer argument reaches from the beginning of its memory, whatever length the object itself gives."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from mpi4py import MPI

from . import datatypes
from .specs import spec_parts

__all__ = ["span_nbytes"]


def span_nbytes(spec: Any, blocks: int) -> int:
    """Return where the bytes end that a buffer argument names; 0 where only the object's own length has it.

    Parameters
    ----------
    spec : buffer spec, any datatype, or one with counts, displacements and datatypes for each block
    blocks : int
        Of an argument with one count for all of them.
    """
    if not isinstance(spec, (list, tuple)) or len(spec) < 2:
        return 0
    if _are_types(spec[-1]):
        return _end_of_each(spec)
    _, counts, displs, key = spec_parts(spec, lists=False)
    if counts is None:
        return 0
    upper, extent = _bounds(key)
    if not hasattr(counts, "__len__"):
        displ = 0 if displs is None or hasattr(displs, "__len__") else operator.index(displs)
        return _end(displ * extent, operator.index(counts) * blocks, upper, extent)
    starts: Any = displs if displs is not None else [sum(counts[:rank]) for rank in range(len(counts))]
    if not hasattr(starts, "__len__"):
        starts = [operator.index(starts) * rank for rank in range(len(counts))]
    return max(
        (_end(displ * extent, count, upper, extent) for count, displ in zip(counts, starts, strict=False)), default=0
    )


def _are_types(last: Any) -> bool:
    """Whether the last part of an argument is a list of datatypes; it may also be one of counts."""
    return isinstance(last, (list, tuple)) and any(isinstance(each, (MPI.Datatype, str)) for each in last)


def _end_of_each(spec: Sequence[Any]) -> int:
    """The end of an argument of Alltoallw, whose displacements are in bytes."""
    _, *between, types = spec
    counts, displs = between[0] if len(between) == 1 else between or ([1] * len(types), [0] * len(types))
    ends = (_end(displ, count, *_bounds(key)) for count, displ, key in zip(counts, displs, types, strict=False))
    return max(ends, default=0)


def _end(begin: int, count: int, upper: int, extent: int) -> int:
    return int(begin + upper + max(count - 1, 0) * extent) if count > 0 else 0


def _bounds(key: Any) -> tuple[int, int]:
    """The end of an element, and the distance from one element to the next."""
    if isinstance(key, MPI.Datatype):
        return sum(key.Get_true_extent()), key.Get_extent()[1]
    itemsize = 1 if key is None else datatypes.of(key).itemsize
    return itemsize, itemsize
