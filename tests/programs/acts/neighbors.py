"""Collectives among neighbours, on grids and on graphs of any shape."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from ..completing import Entry
from ..program import PLAIN, Act, Buffer
from .collectives import Arguments

if TYPE_CHECKING:
    from ..execute import Run

NAMES = tuple(f"Neighbor_{name}" for name in ("allgather", "allgatherv", "alltoall", "alltoallv", "alltoallw"))
TOPOLOGIES = ("line", "ring", "torus", "graph")


class NeighborArguments(Arguments):
    """The buffers of one call of one rank, and its arguments; blocks of MPI.PROC_NULL are never written."""

    act: Neighbors

    def __init__(self, act: Neighbors, run: Run, comm: Any, number: int) -> None:
        if act.topology == "graph":
            self.sources, self.destinations, _ = comm.Get_dist_neighbors()
        else:
            self.sources = self.destinations = [each for dim in range(comm.dim) for each in comm.Shift(dim, 1)]
        super().__init__(act, run, comm, number)

    def _count(self, source: int, dest: int) -> int:
        """Return the length of what one rank sends to another."""
        drawn = self.act.counts
        return drawn[(source + 2 * dest + 3) % len(drawn)]

    def _neighbor_allgather(self) -> list[Any]:
        return self._both(self.act.count, self.act.count, (1, len(self.sources)))

    def _neighbor_alltoall(self) -> list[Any]:
        return self._both(self.act.count, self.act.count, (len(self.destinations), len(self.sources)))

    def _neighbor_allgatherv(self) -> list[Any]:
        send = self._out(self._count(self.rank, 0)).argument()
        return [send, self._vector(self._in, [self._count(source, 0) for source in self.sources])]

    def _neighbor_alltoallv(self, *, typed: bool = False) -> list[Any]:
        sent = [self._count(self.rank, dest) for dest in self.destinations]
        received = [self._count(source, self.rank) for source in self.sources]
        return [self._vector(self._out, sent, typed=typed), self._vector(self._in, received, typed=typed)]

    def _neighbor_alltoallw(self) -> list[Any]:
        return self._neighbor_alltoallv(typed=True)


@dataclass(frozen=True, repr=False)
class Neighbors(Act):
    """A communicator with a topology is made, its ranks exchange with their neighbours, and it is freed."""

    topology: str = "ring"
    edges: tuple[tuple[int, int], ...] = ((0, 1), (1, 0))  # of a graph, from one rank to another
    name: str = NAMES[0]
    mode: str = "blocking"  # nonblocking, persistent
    count: int = 3
    counts: tuple[int, ...] = (1, 0, 2)
    gap: int = 0  # elements between blocks that differ
    backwards: bool = False
    sendbuf: Buffer = PLAIN
    recvbuf: Buffer = PLAIN
    done: str = "Wait"
    after: int = 0
    times: int = 1
    # What `Arguments` asks of every act, and MPI does not allow here.
    root: ClassVar[int] = 0
    in_place: ClassVar[bool] = False
    nan: ClassVar[bool] = False

    def legal(self) -> Neighbors:
        """Use one datatype, in equal blocks a derived one, too; name the counts, also on ranks without neighbours."""
        recvbuf = dataclasses.replace(self.recvbuf, dtype=self.sendbuf.dtype, named=True)
        sendbuf = dataclasses.replace(self.sendbuf, named=True)
        if self.name not in ("Neighbor_allgather", "Neighbor_alltoall"):
            sendbuf, recvbuf = (dataclasses.replace(each, layout="plain") for each in (sendbuf, recvbuf))
        return dataclasses.replace(self, sendbuf=sendbuf, recvbuf=recvbuf)

    def perform(self, run: Run, index: int) -> Iterator[int]:
        comm = self._made(run.comms.of(self, index))
        request: Any = None
        for time in range(self.times):
            if self.mode != "persistent" or request is None:
                call = NeighborArguments(self, run, comm, index + 7 * time)
            assert call.recv is not None
            call.recv.put(call.recv.initial)
            name = f"{index} {self.name} {self.topology} {self.mode} {time}"

            def finish(status: Any, found: Any, call: NeighborArguments = call, name: str = name) -> None:
                run.note(name, call.read())
                run.note(f"{name} send", call.send.all() if call.send is not None else None)

            if self.mode == "blocking":
                getattr(comm, self.name)(*call.arguments)
                finish(None, None)
                continue
            if self.mode == "nonblocking":
                request = getattr(comm, f"I{self.name.lower()}")(*call.arguments)
            else:
                request = request or getattr(comm, f"{self.name}_init")(*call.arguments)
                request.Start()
            if self.after:
                yield self.after
            run.complete([Entry(name, request, finish)], self.done)
        if self.mode == "persistent":
            request.Free()
        comm.Free()

    def _made(self, comm: Any) -> Any:
        """Return a communicator with the topology, a graph whose neighbours have the order that the ranks give.

        Open MPI (5.0.11) mixes up blocks in periodic dimensions of one and two ranks, so that it is no oracle there.
        """
        if self.topology in ("line", "ring", "torus"):
            second = (2 if comm.size % 2 == 0 else 1,) if self.topology == "torus" else ()
            dims = [comm.size // math.prod(second), *second]
            return comm.Create_cart(dims, [self.topology != "line" and size > 2 for size in dims])
        edges = [(source % comm.size, dest % comm.size) for source, dest in self.edges]
        sources = [source for source, dest in edges if dest == comm.rank]
        destinations = [dest for source, dest in edges if source == comm.rank]
        return comm.Create_dist_graph_adjacent(sources, destinations)
