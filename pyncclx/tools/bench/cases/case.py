"""A case: an operation at one size, its buffers, pyncclx's call, expected result.

`Elements` is the type of its elements: storage, values and folds.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import numpy as np
from mpi4py import MPI

from ....arrays.datatypes import TABLE
from ....operators.ops import AVG
from ..memory import RECV, SEND, Memory, array_module

# Names of nccl-tests that NumPy does not have.
ALIASES = {"half": "float16", "float": "float32", "double": "float64", "bf16": "bfloat16"}
INTEGERS = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
FLOATS = ("float16", "bfloat16", "float32", "float64")
OPS = {"sum": MPI.SUM, "prod": MPI.PROD, "min": MPI.MIN, "max": MPI.MAX, "avg": AVG}

_PAIRWISE = {"sum": "add", "avg": "add", "prod": "multiply", "min": "minimum", "max": "maximum"}
_PRECISION = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}
POISON = 113
# Keys of results, and the `in_place` of `Case`.
FORMS = {"out_of_place": False, "in_place": True}

_Case = TypeVar("_Case", bound="Case")


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


@dataclass(frozen=True)
class Options:
    """Options of the operation itself."""

    datatype: str = "float32"
    op: str = "sum"
    root: int = 0
    algorithm: str | None = None


class Case:
    """Operation at one size.

    Attributes
    ----------
    method : str
        Name of pyncclx's method, of the communicator or a window.
    mpi_method : str or None
        Name of mpi4py's method, if it is a different one.
    kind : str
        Name of a peer's method.
    forms : tuple of bool
        The operation's forms: out of place (False), in place (True).
    blocks : bool
        Whether the size counts the blocks of all ranks together.
    nbytes, count, block : int
        Size as in nccl-tests, in bytes and in elements; elements of one rank's part.
    send, recv : arrays
        Buffers. In place, one of them is both.
    """

    method: ClassVar[str]
    mpi_method: ClassVar[str | None] = None
    kind: ClassVar[str]
    forms: ClassVar[tuple[bool, ...]] = (False, True)
    blocks: ClassVar[bool] = True
    reduces: ClassVar[bool] = False
    rooted: ClassVar[bool] = False
    to_root: ClassVar[bool] = False  # only root has a result
    sends_all: ClassVar[bool] = True  # send has all blocks, not only this rank's
    receives_all: ClassVar[bool] = True  # recv has all blocks, not only this rank's
    same_everywhere: ClassVar[bool] = False  # every rank has the same result
    capturable: ClassVar[bool] = True
    windows_only: ClassVar[bool] = False  # pyncclx needs memory from comm.Alloc

    def __init__(self, comm: Any, nbytes: int, options: Options, memory: Memory) -> None:
        self.comm, self.options, self.xp = comm, options, array_module(comm)
        self.elements = Elements(options.datatype)
        self.rank, self.size, self.root = int(comm.rank), int(comm.size), options.root
        self.is_root = self.rank == self.root
        parts = self.size if self.blocks else 1
        self.block = max(nbytes // (self.elements.storage.itemsize * parts), 1)
        self.count = self.block * parts
        self.nbytes = self.count * self.elements.storage.itemsize
        self.memory: Any = memory
        self.has_result = self.is_root or not self.to_root
        self.send = memory.empty(SEND, self.count if self.sends_all else self.block, self.elements.storage)
        self.recv = memory.empty(RECV, self.count if self.receives_all else self.block, self.elements.storage)

    def twin(self: _Case, memory: Memory) -> _Case:
        """Return the same case in other memory."""
        return type(self)(self.comm, self.nbytes, self.options, memory)

    # Methods that operations override.

    @property
    def bus_factor(self) -> float:
        """Bytes on the busiest link for each byte of size; makes busbw comparable."""
        return 1 - 1 / self.size if self.blocks else 1.0

    def source(self, in_place: bool) -> Any:
        """Return the part of a buffer with this rank's contribution; None if it has none."""
        return self.recv if in_place and self.has_result else self.send

    def target(self, in_place: bool) -> Any:
        """Return the array that contains this rank's result; None if it has no result."""
        return self.recv if self.has_result else None

    def arguments(self, in_place: bool) -> tuple[Any, ...]:
        """Return the arguments of pyncclx's method, which are also those of mpi4py's."""
        send = MPI.IN_PLACE if in_place and self.has_result else self.spec(self.send)
        return send, self.whole(self.recv) if self.has_result else None, *self.further()

    def spec(self, array: Any) -> Any:
        """Return the argument for an array."""
        return array

    def whole(self, array: Any) -> Any:
        """Return the argument for an array of all ranks' blocks."""
        return self.spec(array)

    def further(self) -> tuple[Any, ...]:
        """Return the method's arguments after the buffers: the root, if it has one."""
        return (self.root,) if self.rooted else ()

    def expected(self) -> Any:
        """Return the elements that the target must hold."""
        raise NotImplementedError

    # Methods common to all operations.

    def own(self, rank: int, first: int = 0, count: int | None = None) -> Any:
        """Return elements of a rank's contribution, from `first` on."""
        make = self.elements.to_reduce if self.reduces else self.elements.to_move
        return make(self.xp, rank, first, self.count - first if count is None else count)

    def part(self, array: Any, rank: int) -> Any:
        """Return a rank's block of an array."""
        return array[rank * self.block : (rank + 1) * self.block]

    def fill(self, in_place: bool) -> None:
        """Fill the buffers to check an operation: this rank's contribution, else POISON."""
        self.send[...] = POISON
        self.recv[...] = POISON
        source = self.source(in_place)
        if source is not None:
            source[...] = self.own(self.rank, count=len(source))

    def call(self, in_place: bool) -> Callable[[], Any]:
        """Return the call of pyncclx's method, without arguments."""
        keywords = {"algorithm": self.options.algorithm} if self.options.algorithm else {}
        return functools.partial(getattr(self.comm, self.method), *self.arguments(in_place), **keywords)
