"""Collectives on the same arrays, one after another: a cached call must not be taken for a different one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from ..memory import MPI_NAMES, POISON, pattern
from ..program import Act

if TYPE_CHECKING:
    from ..execute import Run

NAMES = (
    *("Reduce_scatter", "Allgatherv", "Alltoallv", "Gatherv", "Scatterv"),
    *("Allreduce", "Bcast", "Reduce_scatter_block", "Allgather", "Scan"),
)
IN_PLACE = ("Reduce_scatter", "Allreduce", "Allgatherv")
MOST = 9  # elements of a block
Turn = tuple[str, tuple[int, ...], int]  # the operation, counts and root of a call


class Arrays:
    """A send and a receive array of one rank, and the counts of the next call."""

    def __init__(self, act: UsedAgain, run: Run, comm: Any) -> None:
        self.act, self.run, self.comm, self.size, self.rank = act, run, comm, comm.size, comm.rank
        self.dtype = np.dtype(act.dtype)
        self.room = MOST * comm.size * comm.size
        self.send, self.recv = (run.place.memory(act.place, self.room * self.dtype.itemsize) for _ in range(2))
        self.numbers: Any = np.zeros(comm.size, "i4") if act.given == "array" else [0] * comm.size
        self._parts: dict[tuple[int, int], Any] = {}

    def fill(self, turn: int) -> None:
        """Store new values into the send array, and also into the receive array where a call reads it."""
        values = pattern(self.act.dtype, self.room, turn, self.rank)
        poison = np.full(self.room * self.dtype.itemsize, POISON, "u1").view(self.dtype)
        self.run.place.store(self.send, values)
        self.run.place.store(self.recv, values if self.act.in_place else poison)

    def part(self, memory: Any, count: int) -> Any:
        """Return the first elements of an array; equal calls get the same object."""
        key = id(memory), count
        if key not in self._parts:
            self._parts[key] = self.run.place.part(memory, 0, count, self.dtype)
        return self._parts[key]

    def vector(self, memory: Any, counts: list[int]) -> list[Any]:
        """Return an array with a count for each rank; the list or array of the counts is the same in each call."""
        self.numbers[:] = counts
        numbers = tuple(counts) if self.act.given == "tuple" else self.numbers
        displs = [0, *accumulate(counts)][:-1]
        return [self.part(memory, self.room), numbers, displs, getattr(self.run.MPI, MPI_NAMES[self.act.dtype])]

    def read(self, name: str, counts: list[int]) -> np.ndarray:
        """Return the receive array; of a Reduce_scatter in place, what has a meaning."""
        whole = self.run.place.load(self.recv).view(self.dtype)
        return whole[: counts[self.rank]] if name == "Reduce_scatter" and self.act.in_place else whole

    def arguments(self, name: str, counts: list[int], root: int) -> list[Any]:
        """Return the arguments of a call."""
        return list(getattr(self, f"_{name.lower()}")(counts, root))

    def _out(self, count: int) -> Any:
        return self.run.MPI.IN_PLACE if self.act.in_place else self.part(self.send, count)

    def _reduce_scatter(self, counts: list[int], root: int) -> list[Any]:
        self.numbers[:] = counts
        received = sum(counts) if self.act.in_place else counts[self.rank]
        numbers = tuple(counts) if self.act.given == "tuple" else self.numbers
        can_be_left_out = self.act.mode == "blocking" or self.run.MPI is not self.run.mpi  # mpi4py needs them otherwise
        if self.act.given == "none" and not self.act.in_place and can_be_left_out:
            numbers = None
        return [self._out(sum(counts)), self.part(self.recv, received), numbers]

    def _allgatherv(self, counts: list[int], root: int) -> list[Any]:
        return [self._out(counts[self.rank]), self.vector(self.recv, counts)]

    def _alltoallv(self, counts: list[int], root: int) -> list[Any]:
        sent = [counts[(self.rank + other) % self.size] for other in range(self.size)]
        return [[self.part(self.send, self.room), sent], self.vector(self.recv, sent)]

    def _gatherv(self, counts: list[int], root: int) -> list[Any]:
        return [self.part(self.send, counts[self.rank]), self.vector(self.recv, counts), root]

    def _scatterv(self, counts: list[int], root: int) -> list[Any]:
        return [self.vector(self.send, counts), self.part(self.recv, counts[self.rank]), root]

    def _allreduce(self, counts: list[int], root: int) -> list[Any]:
        return [self._out(counts[0]), self.part(self.recv, counts[0])]

    _scan = _allreduce

    def _bcast(self, counts: list[int], root: int) -> list[Any]:
        return [self.part(self.send if self.rank == root else self.recv, counts[0]), root]

    def _reduce_scatter_block(self, counts: list[int], root: int) -> list[Any]:
        return [self.part(self.send, self.size * counts[0]), self.part(self.recv, counts[0])]

    def _allgather(self, counts: list[int], root: int) -> list[Any]:
        return [self.part(self.send, counts[0]), self.part(self.recv, self.size * counts[0])]


@dataclass(frozen=True, repr=False)
class UsedAgain(Act):
    """Several calls with the same two arrays; values, counts and roots change between the calls."""

    turns: tuple[Turn, ...] = (("Reduce_scatter", (1, 2), 0), ("Reduce_scatter", (2, 1), 0))
    place: str = "device"
    dtype: str = "i4"
    given: str = "array"  # or list, which change where they are, or tuple, or none where a call needs no counts
    mode: str = "blocking"  # or nonblocking
    in_place: bool = False

    def legal(self) -> UsedAgain:
        """Call in place only operations that can be."""
        can = all(name in IN_PLACE for name, _, _ in self.turns)
        return dataclasses.replace(self, in_place=self.in_place and can)

    def perform(self, run: Run, index: int) -> Iterator[int]:
        comm = run.comms.of(self, index)
        arrays = Arrays(self, run, comm)
        for turn, (name, drawn, root) in enumerate(self.turns):
            counts = [drawn[rank % len(drawn)] for rank in range(comm.size)]
            arrays.fill(index + 7 * turn)
            method = name if self.mode == "blocking" else f"I{name.lower()}"
            request = getattr(comm, method)(*arrays.arguments(name, counts, root % comm.size))
            if request is not None:
                request.Wait()
            run.note(f"{index} {method} {turn}", arrays.read(name, counts))
        yield from ()
