"""A simulated communicator of one rank among many, with modelled collectives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpi4py import MPI

from ...team.state import State
from . import network
from .clock import Clock


class Over:
    """The request of an operation that has completed."""

    def Test(self) -> bool:
        """Return True (mpi4py's method)."""
        return True


class Results:
    """Results of collectives of rank 0, which runs first; later ranks get the same."""

    def __init__(self) -> None:
        self._made: list[bytes] = []
        self._next: int | None = None

    def again(self) -> None:
        """Start again with the first result, for another rank."""
        self._next = 0

    def give(self, buffer: memoryview, result: bytes | None = None) -> None:
        """Copy a collective's result to a buffer.

        For rank 0 the result is `result`, or what the buffer contains.
        """
        if self._next is None:
            self._made.append(bytes(buffer) if result is None else result)
            buffer[:] = self._made[-1]
        else:
            buffer[:] = self._made[self._next]
            self._next += 1


class SimulatedGroup:
    """The parts of a group that the code uses."""

    def __init__(self, ranks: Sequence[int], name: str) -> None:
        self.ranks, self.name = ranks, name

    def Incl(self, ranks: Sequence[int]) -> SimulatedGroup:
        """Return a group of some of the ranks (mpi4py's method)."""
        return SimulatedGroup([self.ranks[rank] for rank in ranks], "a rail")

    def Free(self) -> None:
        """Do nothing (mpi4py's method)."""


class SimulatedComm:
    """The methods of mpi4py's communicators that the code uses.

    Rank 0 takes part in all simulated collectives and is the lowest rank. So its value is the minimum, and it is the
    root of broadcasts. A bitwise OR combines tables of which each rank has filled its part; `table` has all parts.

    Parameters
    ----------
    clock : Clock
    results : Results
    rank, size : int
    name : str
        Name of its group of ranks.
    table : bytes
    node : sequence of int
        The ranks of this one's node.
    local : Intracomm
        The node's communicator: a real one, whose creation is not simulated.
    """

    def __init__(
        self,
        clock: Clock,
        results: Results,
        rank: int,
        size: int,
        *,
        name: str,
        table: bytes = b"",
        node: Sequence[int] = (),
        local: Any = None,
    ) -> None:
        self.rank, self.size = rank, size
        self._clock, self._results, self._name = clock, results, name
        self._table, self._node, self._local = table, list(node), local
        self._state: State | None = State()

    def Iallreduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op) -> Over:
        """Allreduce in place, in modelled time (mpi4py's method)."""
        buffer = _bytes(recvbuf)
        self._results.give(buffer, self._table if op == MPI.BOR else None)
        self._clock.pass_by(self._name, network.allreduce(self.size, len(buffer)), asleep=True)
        return Over()

    def Ibcast(self, buf: Any, root: int) -> Over:
        """Broadcast from root 0, in modelled time (mpi4py's method)."""
        buffer = _bytes(buf)
        self._results.give(buffer)
        self._clock.pass_by(self._name, network.broadcast(self.size, len(buffer)), asleep=True)
        return Over()

    def Ibarrier(self) -> Over:
        """Let the modelled time of a barrier pass (mpi4py's method)."""
        self._clock.pass_by(self._name, network.barrier(self.size), asleep=True)
        return Over()

    def Get_group(self) -> SimulatedGroup:
        """Return the group of all ranks (mpi4py's method)."""
        return SimulatedGroup(range(self.size), self._name)

    def Create(self, group: SimulatedGroup) -> Any:
        """Return a communicator of some ranks (mpi4py's method)."""
        for pattern in network.duplicate(self.size):
            self._clock.pass_by(self._name, pattern, asleep=False)
        if group.ranks == self._node:
            return self._local
        rank, size = group.ranks.index(self.rank), len(group.ranks)
        return SimulatedComm(self._clock, self._results, rank, size, name=group.name)

    def Free(self) -> None:
        """Do nothing (mpi4py's method)."""


def _bytes(buffer: Any) -> memoryview:
    """Return the memory of an array, or of a list of an array and a datatype."""
    return memoryview(buffer[0] if isinstance(buffer, list) else buffer).cast("B")
