"""Counts and displacements of the v-collectives on the host; integer arguments."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from mpi4py import MPI

from ..errors import MPIError

__all__ = ["check", "divide", "integer", "integers", "packed"]


def integer(number: Any) -> int:
    """Return a rank or tag as an int; like mpi4py, drop the fraction of a float."""
    if type(number) is int:
        return number
    if not hasattr(number, "__int__"):
        raise TypeError(f"an integer is required, not {number!r}")
    return int(number)


def divide(count: int, size: int) -> list[int]:
    """Return the lengths of `size` blocks of `count` elements.

    The first blocks get the remainder.
    """
    each, rest = divmod(count, max(size, 1))
    return [each + (rank < rest) for rank in range(size)]


def packed(counts: Sequence[int]) -> list[int]:
    """Return the displacements of adjacent blocks."""
    displs, end = [], 0
    for count in counts:
        displs.append(end)
        end += count
    return displs


def integers(value: Any, name: str, size: int, *, stride: bool) -> list[int]:
    """Return counts or displs as a list.

    One integer is the count of all blocks, or with `stride` their distance.
    """
    try:
        length = len(value)
    except TypeError:
        if value is None:
            raise ValueError(f"{name} is None; give {size} numbers, one for each rank") from None
        each = operator.index(value)
        return [each * rank for rank in range(size)] if stride else [each] * size
    if length != size:
        raise ValueError(f"{name} has {length} items, expecting {size}, one for each rank")
    return list(map(operator.index, value))


def check(counts: Sequence[int], displs: Sequence[int] | None, room: int, name: str) -> None:
    """Raise an error for blocks outside the array; `displs` is None if on the device."""
    for rank, count in enumerate(counts):
        if count < 0:
            raise MPIError(MPI.ERR_COUNT, f"{name} has count {count} for rank {rank}; it cannot be negative")
        first = displs[rank] if displs is not None else 0
        # An empty block may have any displacement.
        if count and not 0 <= first <= room - count:
            raise ValueError(
                f"{name} has {room} elements, the block of rank {rank} is {count} from element {first}; pass "
                "a larger array, or check counts and displs (in elements)"
            )
