"""Split buffer arguments in mpi4py's forms, such as ``[array, count, datatype]``.

`span_of` computes the bytes that an argument selects, relative to its array's start.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

from mpi4py import MPI

from . import datatypes
from .checks import in_host_memory
from .datatypes import Datatype

# Array, counts, displs and datatype; None for parts that the spec omits.
_Parts = tuple[Any, Any, Any, Any]
_NOTHING = (0, 0)  # begin and end of no bytes


def spec_parts(spec: Any, name: str = "buf", *, lists: bool = True) -> _Parts:
    """Split a buffer argument into array, count, displacement and datatype.

    Omitted parts are None. A pair (count, displ) may be a tuple, and with `lists` also a list.
    """
    if not isinstance(spec, (list, tuple)):
        return spec, None, None, None
    if not 2 <= len(spec) <= 4:
        raise ValueError(f"{name} is a list of {len(spec)} items; give [array, count, datatype] or a part of it")
    if len(spec) == 4:
        return spec[0], spec[1], spec[2], spec[3]
    array, count = spec[0], spec[1]
    key = spec[2] if len(spec) == 3 else None
    if len(spec) == 2 and isinstance(count, (MPI.Datatype, Datatype, str)):
        return array, None, None, count
    if isinstance(count, tuple) or (lists and isinstance(count, list)):
        if len(count) != 2:
            raise ValueError(f"{name} has {count!r} where (count, displ) belongs")
        return array, count[0], count[1], key
    return array, count, None, key


def arrays_of(*arguments: Any) -> list[Any]:
    """Return the arrays of buffer arguments, without the lists around them.

    A caller that keeps the arrays alive must refer to these, because the program may change the lists.
    """
    arrays = []
    for each in arguments:
        arrays.append(each[0] if isinstance(each, (list, tuple)) and each else each)
    return arrays


def is_nothing(array: Any) -> bool:
    """Return whether an argument has no array; its datatype may still have addresses."""
    return array is None or array is MPI.BOTTOM


def no_buffer(value: Any, name: str) -> Exception:
    """Return the error for an argument that is no device array."""
    try:
        memoryview(value)
    except TypeError:
        return TypeError(f"{name} is {value!r}; expecting a device array or a list such as [array, count, MPI.FLOAT]")
    return in_host_memory(value, name)


def span_of(spec: Any, blocks: int) -> tuple[int, int]:
    """Return begin and end of the bytes that a buffer argument selects in its array.

    Both are 0 for an argument without a count, which selects the whole array. The begin is negative for a datatype with
    a negative stride.

    Parameters
    ----------
    spec : buffer spec, any datatype, or one with counts, displacements and datatypes for each block
    blocks : int
        Number of blocks, for an argument with one count for all blocks.
    """
    if not isinstance(spec, (list, tuple)) or len(spec) < 2:
        return _NOTHING
    # A rank without neighbours has empty lists of counts, displacements and datatypes.
    if isinstance(spec[-1], (list, tuple)) and not spec[-1]:
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
    """Return begin, end and extent of an element, in bytes from its address."""
    if isinstance(key, MPI.Datatype):
        lower, length = key.Get_true_extent()
        return lower, lower + length, key.Get_extent()[1]
    itemsize = 1 if key is None else datatypes.of(key).itemsize
    return 0, itemsize, itemsize
