"""A simulated communicator of one rank among many, with modelled collectives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mpi4py import MPI

from ...team.state import State
from . import network
from .network import Clock


class Results:
    """Results of rank 0's collectives, which runs first; other ranks get the same."""

    def __init__(self) -> None:
        self._made: list[bytes] = []
        self._next: int | None = None

    def again(self) -> None:
        """Start again at the first result, for another rank."""
        self._next = 0

    def give(self, buffer: memoryview, result: bytes | None = None) -> None:
        """Copy the result of a simulated collective into `buffer`.

        On rank 0 the result is `result`; without it, the buffer already contains the result. Other ranks get rank 0's
        result.
        """
        if self._next is None:
            self._made.append(bytes(buffer) if result is None else result)
            buffer[:] = self._made[-1]
        else:
            buffer[:] = self._made[self._next]
            self._next += 1


class SimulatedGroup(NamedTuple):
    """The methods of MPI groups that the simulated code uses."""

    ranks: Sequence[int]
    name: str

    def Incl(self, ranks: Sequence[int]) -> SimulatedGroup:
        """Return a group of some of the ranks (mpi4py's method)."""
        return SimulatedGroup([self.ranks[rank] for rank in ranks], "a rail")

    def Free(self) -> None:
        """Do nothing (mpi4py's method)."""


@dataclass(eq=False)
class SimulatedComm:
    """The methods of mpi4py's communicators that the simulated code uses.

    Rank 0 takes part in all simulated collectives. The results follow from this: rank 0 is the lowest rank, so its
    value is the minimum; broadcasts have it as root; and a bitwise OR combines tables in which each rank fills its own
    part, so its result is `table`, which has all parts.

    Parameters
    ----------
    clock : Clock
    results : Results
    rank, size : int
    name : str
        Name of its group of ranks.
    table : bytes
    node : sequence of int
        The ranks of this rank's node.
    local : Intracomm
        The node's communicator: a real one, whose creation is not simulated.
    """

    clock: Clock
    results: Results
    rank: int
    size: int
    name: str
    table: bytes = b""
    node: Sequence[int] = ()
    local: Any = None
    _state: State | None = field(default_factory=State)

    def Iallreduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op) -> MPI.Request:
        """Allreduce in place, in modelled time (mpi4py's method)."""
        buffer = _bytes(recvbuf)
        self.results.give(buffer, self.table if op == MPI.BOR else None)
        self.clock.pass_by(self.name, network.allreduce(self.size, len(buffer)), asleep=True)
        return MPI.REQUEST_NULL

    def Ibcast(self, buf: Any, root: int) -> MPI.Request:
        """Broadcast from root 0, in modelled time (mpi4py's method)."""
        buffer = _bytes(buf)
        self.results.give(buffer)
        self.clock.pass_by(self.name, network.broadcast(self.size, len(buffer)), asleep=True)
        return MPI.REQUEST_NULL

    def Ibarrier(self) -> MPI.Request:
        """Let the modelled time of a barrier pass (mpi4py's method)."""
        self.clock.pass_by(self.name, network.barrier(self.size), asleep=True)
        return MPI.REQUEST_NULL

    def Get_group(self) -> SimulatedGroup:
        """Return the group of all ranks (mpi4py's method)."""
        return SimulatedGroup(range(self.size), self.name)

    def Create(self, group: SimulatedGroup) -> Any:
        """Return a communicator of some ranks (mpi4py's method)."""
        for pattern in network.duplicate(self.size):
            self.clock.pass_by(self.name, pattern, asleep=False)
        if group.ranks == self.node:
            return self.local
        rank, size = group.ranks.index(self.rank), len(group.ranks)
        return SimulatedComm(self.clock, self.results, rank, size, name=group.name)

    def Free(self) -> None:
        """Do nothing (mpi4py's method)."""


def _bytes(buffer: Any) -> memoryview:
    """Return the memory of an array, or of a list of an array and a datatype."""
    return memoryview(buffer[0] if isinstance(buffer, list) else buffer).cast("B")
