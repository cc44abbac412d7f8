"""Element types of the benchmark: storage, values, and folds."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from mpi4py import MPI

from ...arrays.datatypes import TABLE
from ...operators.ops import AVG

# Names of nccl-tests that NumPy does not have.
ALIASES = {"half": "float16", "float": "float32", "double": "float64", "bf16": "bfloat16"}
INTEGERS = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
FLOATS = ("float16", "bfloat16", "float32", "float64")
OPS = {"sum": MPI.SUM, "prod": MPI.PROD, "min": MPI.MIN, "max": MPI.MAX, "avg": AVG}

_PAIRWISE = {"sum": "add", "avg": "add", "prod": "multiply", "min": "minimum", "max": "maximum"}
_PRECISION = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}


class Elements:
    """Element type, in arrays of NumPy or CuPy.

    NumPy has no bfloat16. Such elements are stored as their bits, and passed to operations with their name.

    Attributes
    ----------
    name : str
    storage : numpy.dtype
        Type of the arrays.
    precision : float
        Distance from 1 to the next value; 0 for integers.
    """

    def __init__(self, name: str) -> None:
        self.name = ALIASES.get(name, name)
        if self.name not in INTEGERS + FLOATS:
            raise SystemExit(f"-d {name}: give one of {', '.join((*INTEGERS, *FLOATS, *ALIASES))}")
        self.row = TABLE[self.name]
        self.storage = np.dtype("u2" if self.name == "bfloat16" else self.name)
        self.bits = np.dtype(f"u{self.storage.itemsize}")
        self.precision = _PRECISION.get(self.name, 0.0)

    def spec(self, array: Any) -> Any:
        """Return the buffer specification of an array."""
        return [array, self.row.mpi or self.name] if self.name == "bfloat16" else array

    def encode(self, values: Any) -> Any:
        """Return values rounded to the nearest, as stored elements."""
        if self.name != "bfloat16":
            return values.astype(self.storage)
        bits = values.astype(np.float32).view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)

    def decode(self, stored: Any) -> Any:
        """Return stored elements in the type of their sums: float32 for half precision."""
        if self.name == "bfloat16":
            return (stored.astype(np.uint32) << 16).view(np.float32)
        return stored.astype(np.float32) if self.name == "float16" else stored

    def to_move(self, xp: Any, rank: int, first: int, count: int) -> Any:
        """Return elements for operations that move them, from element `first` of a rank.

        Each element of each rank has different bits, within the type's range.
        """
        place = xp.arange(first, first + count, dtype=np.int64)
        return ((place * 0x9E3779B1 + (rank + 1) * 0x85EBCA6B) >> 7).astype(self.bits).view(self.storage)

    def to_reduce(self, xp: Any, rank: int, first: int, count: int) -> Any:
        """Return elements for reductions, from element `first` of a rank.

        Floats are between 1/2 and 3/2, and their sums depend on the order; integers are small.
        """
        place = xp.arange(first, first + count, dtype=np.int64)
        if not self.precision:
            return self.encode(place % 61 + rank)
        return self.encode((place * 7919 + rank * 104729) % 1021 / 1021 + 0.5)

    def fold(self, xp: Any, op: str, stored: list[Any], ranks: int | None = None) -> Any:
        """Fold arrays in order; an average divides by `ranks`, or by the number of arrays."""
        pairwise = getattr(xp, _PAIRWISE[op])
        folded = functools.reduce(pairwise, map(self.decode, stored))
        return self.encode(folded / folded.dtype.type(ranks or len(stored)) if op == "avg" else folded)
