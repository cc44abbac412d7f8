"""A case: an operation at one size, its buffers, pyncclx's call, expected result."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from mpi4py import MPI

from ..elements import Elements
from ..memory import RECV, SEND, Memory, array_module

POISON = 113
# Keys of results, and the `in_place` of `Case`.
FORMS = {"out_of_place": False, "in_place": True}

_Case = TypeVar("_Case", bound="Case")


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
        """Return the part of a buffer for this rank's result; None if it has none."""
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
        """Return the arguments after the buffers."""
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
