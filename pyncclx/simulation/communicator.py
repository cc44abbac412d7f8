"""A communicator of one rank among many that are not there: the model has the results of its collectives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpi4py import MPI

from ..team.state import State
from . import network
from .clock import Clock


class Over:
    """The request of an operation that is over."""

    def Test(self) -> bool:
        """As mpi4py's."""
        return True


class Results:
    """What collectives have given rank 0, which runs first; the other ranks get the same, one after another."""

    def __init__(self) -> None:
        self._made: list[bytes] = []
        self._next: int | None = None

    def again(self) -> None:
        """Let another rank run."""
        self._next = 0

    def give(self, buffer: memoryview, result: bytes | None = None) -> None:
        """Let a buffer have the result of a collective, which for rank 0 is what it has, or `result`."""
        if self._next is None:
            self._made.append(bytes(buffer) if result is None else result)
            buffer[:] = self._made[-1]
        else:
            buffer[:] = self._made[self._next]
            self._next += 1


class SimulatedGroup:
    """What is asked of a group."""

    def __init__(self, ranks: Sequence[int]) -> None:
        self.ranks = ranks

    def Incl(self, ranks: Sequence[int]) -> SimulatedGroup:
        """As mpi4py's."""
        return SimulatedGroup([self.ranks[rank] for rank in ranks])

    def Free(self) -> None:
        """As mpi4py's."""


class SimulatedComm:
    """What the code that makes a communicator calls of mpi4py's.

    Rank 0 takes part in all that is simulated, and is the lowest: the least of what ranks give is its value, and so is
    what is broadcast. Bitwise OR is that of tables of which each rank has filled its part; `table` has all of them.

    Parameters
    ----------
    clock : Clock
    results : Results
    rank, size : int
    name : str
        Of its ranks.
    table : bytes
    node : sequence of int
        The ranks of this one's node.
    local : Intracomm
        Their communicator: a real one, whose making is not simulated.
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
        """As mpi4py's, in place."""
        buffer = _bytes(recvbuf)
        self._results.give(buffer, self._table if op == MPI.BOR else None)
        self._clock.pass_by(self._name, network.allreduce(self.size, len(buffer)), asleep=True)
        return Over()

    def Ibcast(self, buf: Any, root: int) -> Over:
        """As mpi4py's; `root` is 0."""
        buffer = _bytes(buf)
        self._results.give(buffer)
        self._clock.pass_by(self._name, network.broadcast(self.size, len(buffer)), asleep=True)
        return Over()

    def Ibarrier(self) -> Over:
        """As mpi4py's."""
        self._clock.pass_by(self._name, network.barrier(self.size), asleep=True)
        return Over()

    def Get_group(self) -> SimulatedGroup:
        """As mpi4py's."""
        return SimulatedGroup(range(self.size))

    def Create_group(self, group: SimulatedGroup) -> Any:
        """As mpi4py's, of the ranks of the node or of a rail."""
        name = "a node" if group.ranks == self._node else "a rail"
        for pattern in network.duplicate(len(group.ranks)):
            self._clock.pass_by(name, pattern, asleep=False)
        if group.ranks == self._node:
            return self._local
        return SimulatedComm(self._clock, self._results, group.ranks.index(self.rank), len(group.ranks), name=name)

    def Dup(self) -> SimulatedComm:
        """As mpi4py's."""
        for pattern in network.duplicate(self.size):
            self._clock.pass_by(self._name, pattern, asleep=False)
        return SimulatedComm(self._clock, self._results, self.rank, self.size, name=self._name)

    def Free(self) -> None:
        """As mpi4py's."""


def _bytes(buffer: Any) -> memoryview:
    """The memory of an argument: an array, or a list of one and a datatype."""
    return memoryview(buffer[0] if isinstance(buffer, list) else buffer).cast("B")
