"""Collectives on arrays: blocking, nonblocking and persistent."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..completing import Entry
from ..memory import Area, pattern
from ..program import PLAIN, Act, Buffer, OneOf

if TYPE_CHECKING:
    from ..execute import Run

REDUCTIONS = ("Allreduce", "Reduce", "Scan", "Exscan", "Reduce_scatter_block", "Reduce_scatter")
VECTORS = ("Gatherv", "Scatterv", "Allgatherv", "Alltoallv", "Alltoallw")
MOVES = ("Bcast", "Gather", "Scatter", "Allgather", "Alltoall", *VECTORS)
NAMES = (*REDUCTIONS, *MOVES, "Barrier")
ROOTED = ("Gather", "Gatherv", "Scatter", "Scatterv", "Reduce")
FOLDS = {"MAX": np.maximum, "MIN": np.minimum}
IN_PLACE = ("Allreduce", "Reduce", "Gather", "Scatter", "Allgather", "Allgatherv", "Alltoall", "Reduce_scatter")


class Arguments:
    """The buffers of one call of one rank, and its arguments."""

    def __init__(self, act: Collective, run: Run, comm: Any, number: int) -> None:
        self.act, self.run, self.comm, self.number = act, run, comm, number
        self.rank, self.size, self.root = comm.rank, comm.size, act.root % comm.size
        self.send: Area | None = None
        self.recv: Area | None = None
        self.arguments = getattr(self, f"_{act.name.lower()}")()

    def _out(self, count: int, blocks: int = 1) -> Area:
        values = pattern(self.act.sendbuf.dtype, count * blocks, self.number, self.rank, nan=self.act.nan)
        self.send = Area(self.run, self.act.sendbuf, count, blocks=blocks, values=values)
        return self.send

    def _in(self, count: int, blocks: int = 1, *, filled: bool = False) -> Area:
        nan = self.act.nan
        values = pattern(self.act.recvbuf.dtype, count * blocks, self.number, self.rank, nan=nan) if filled else None
        self.recv = Area(self.run, self.act.recvbuf, count, blocks=blocks, values=values)
        return self.recv

    def _both(self, send: int, recv: int, blocks: tuple[int, int], *, at_root: bool = False) -> list[Any]:
        """Return send and receive arguments, in place or apart; only root has both where `at_root`."""
        in_place = self.act.in_place and not (at_root and self.rank != self.root)
        received = self._in(recv, blocks[1], filled=self.act.in_place)
        if in_place:
            return [self.run.MPI.IN_PLACE, received.argument()]
        return [self._out(send, blocks[0]).argument(), received.argument()]

    @property
    def _op(self) -> Any:
        return getattr(self.run.MPI, self.act.op)

    def _barrier(self) -> list[Any]:
        return []

    def _bcast(self) -> list[Any]:
        return [self._in(self.act.count, filled=True).argument(), self.root]

    def _allreduce(self) -> list[Any]:
        return [*self._both(self.act.count, self.act.count, (1, 1)), self._op]

    def _reduce(self) -> list[Any]:
        return [*self._both(self.act.count, self.act.count, (1, 1), at_root=True), self._op, self.root]

    def _scan(self) -> list[Any]:
        return [self._out(self.act.count).argument(), self._in(self.act.count, filled=True).argument(), self._op]

    _exscan = _scan

    def _reduce_scatter_block(self) -> list[Any]:
        send, recv = self._out(self.act.count, self.size), self._in(self.act.count)
        return [send.argument(), recv.argument(), self._op]

    def _reduce_scatter(self) -> list[Any]:
        counts = self.counts(0)
        send, recv = self._out(sum(counts)), self._in(counts[self.rank])
        return [send.argument(), recv.argument(), counts, self._op]

    def _allgather(self) -> list[Any]:
        return self._both(self.act.count, self.act.count, (1, self.size))

    def _alltoall(self) -> list[Any]:
        return self._both(self.act.count, self.act.count, (self.size, self.size))

    def _gather(self) -> list[Any]:
        if self.rank != self.root:
            return [self._out(self.act.count).argument(), None, self.root]
        return [*self._both(self.act.count, self.act.count, (1, self.size)), self.root]

    def _scatter(self) -> list[Any]:
        if self.rank != self.root:
            return [None, self._in(self.act.count).argument(), self.root]
        send = self._out(self.act.count, self.size).argument()
        return [send, self.run.MPI.IN_PLACE if self.act.in_place else self._in(self.act.count).argument(), self.root]

    def counts(self, rank: int) -> list[int]:
        """Return the counts of a rank, for each rank."""
        drawn = self.act.counts
        return [drawn[(rank + other) % len(drawn)] for other in range(self.size)]

    def _places(self, counts: Sequence[int]) -> tuple[list[int], int]:
        """Return displacements, in order or backwards, and the length of all."""
        order = range(len(counts))
        displs, end = [0] * len(counts), 0
        for block in reversed(order) if self.act.backwards else order:
            displs[block] = end
            end += counts[block] + self.act.gap
        return displs, end

    def _vector(self, make: Any, counts: Sequence[int], *, typed: bool = False, **more: Any) -> list[Any]:
        displs, length = self._places(counts)
        return make(length, **more).argument(counts=list(counts), displs=displs, typed=typed)

    def _gatherv(self) -> list[Any]:
        counts = self.counts(0)
        send = self._out(counts[self.rank]).argument()
        return [send, self._vector(self._in, counts) if self.rank == self.root else None, self.root]

    def _scatterv(self) -> list[Any]:
        counts = self.counts(0)
        send = self._vector(self._out, counts) if self.rank == self.root else None
        return [send, self._in(counts[self.rank]).argument(), self.root]

    def _allgatherv(self) -> list[Any]:
        counts = self.counts(0)
        recv = self._vector(self._in, counts, filled=self.act.in_place)
        return [self.run.MPI.IN_PLACE if self.act.in_place else self._out(counts[self.rank]).argument(), recv]

    def _alltoallv(self, *, typed: bool = False) -> list[Any]:
        theirs = [self.counts(other)[self.rank] for other in range(self.size)]
        sent = self._vector(self._out, self.counts(self.rank), typed=typed)
        return [sent, self._vector(self._in, theirs, typed=typed)]

    def _alltoallw(self) -> list[Any]:
        return self._alltoallv(typed=True)

    def read(self) -> tuple[Any, ...]:
        """Return what is to be compared."""
        recv = self.recv.read() if self.recv is not None else ()
        name = self.act.name
        if (name == "Reduce" and self.rank != self.root) or (name == "Exscan" and self.rank == 0):
            return (recv[1],)  # the elements have no meaning
        if self.act.nan and self.act.op in FOLDS and name in REDUCTIONS and self.run.MPI is self.run.mpi:
            # A communicator for which the heap has no room is staged: then it is MPI's result.
            return OneOf((self._propagated(), recv[0])), recv[1]
        return recv

    def _propagated(self) -> Any:
        """Return what has NaN where any rank has it, as pyncclx promises; mpi4py's depends on which rank that is."""
        counts = {"Reduce_scatter": self.counts(0), "Reduce_scatter_block": [self.act.count] * self.size}
        counts_here = counts.get(self.act.name, [self.act.count])
        ranks = {"Scan": self.rank + 1, "Exscan": self.rank}.get(self.act.name, self.size)
        dtype, length = self.act.sendbuf.dtype, sum(counts_here)
        values = [pattern(dtype, length, self.number, rank, nan=True) for rank in range(ranks)]
        result = functools.reduce(FOLDS[self.act.op], values)
        place = self.rank if self.act.name in counts else 0
        begin = sum(counts_here[:place])
        return result[begin : begin + counts_here[place]]


@dataclass(frozen=True, repr=False)
class Collective(Act):
    """One operation, called by all ranks of the communicator."""

    name: str = "Allreduce"
    mode: str = "blocking"  # nonblocking
    root: int = 0
    count: int = 3
    counts: tuple[int, ...] = (1, 0, 2)  # of operations whose blocks differ
    gap: int = 0  # elements between such blocks
    backwards: bool = False  # the order of such blocks
    op: str = "SUM"
    sendbuf: Buffer = PLAIN
    recvbuf: Buffer = PLAIN
    in_place: bool = False
    nan: bool = False
    temporary: bool = False
    beside: bool = False
    later: int = 0  # acts after which the odd ranks begin, on a communicator of its own
    done: str = "Wait"
    after: int = 0
    times: int = 1  # so many equal calls, one after another

    def legal(self) -> Collective:
        """Use one datatype; ranks begin at different times only what is nonblocking, on a communicator of its own."""
        later = self.later if self.mode == "nonblocking" else 0
        recvbuf = dataclasses.replace(self.recvbuf, dtype=self.sendbuf.dtype)
        op = "SUM" if self.sendbuf.dtype == "c16" else self.op  # complex numbers have no order
        changes: dict[str, Any] = {"recvbuf": recvbuf, "later": later, "op": op}
        if self.mode == "persistent":
            changes |= {"comm": "base"}
        elif later:
            changes |= {"comm": "own", "times": 1, "after": max(self.after, later + 1)}
        elif self.comm == "own":
            changes |= {"comm": "dup"}
        if self.name in ROOTED or self.in_place:  # some ranks pass one buffer, whose place is then that of all
            changes |= {"recvbuf": dataclasses.replace(recvbuf, place=self.sendbuf.place)}
        if self.name == "Bcast":
            changes |= {"sendbuf": changes["recvbuf"]}
        if self.name in REDUCTIONS and self.mode != "blocking":  # of these mpi4py does not keep the send buffer
            changes |= {"temporary": False}
        if self.name not in IN_PLACE:
            changes |= {"in_place": False}
        if "host" in (self.sendbuf.place, changes["recvbuf"].place):  # MPI reduces these
            changes |= {"nan": False}
        if self.name in (*REDUCTIONS, *VECTORS):
            changes |= {"sendbuf": dataclasses.replace(self.sendbuf, layout="plain")}
            changes |= {"recvbuf": dataclasses.replace(changes["recvbuf"], layout="plain")}
        return dataclasses.replace(self, **changes)

    def perform(self, run: Run, index: int) -> Iterator[int]:
        comm = run.comms.of(self, index)
        if not self.later:
            self._calls(run, comm, index, self.after)
            return
        self._calls(run, comm, index, 0)  # in the first call of a kind the ranks meet
        if comm.rank % 2 == 0:
            self._calls(run, comm, index, self.after)
        yield self.later
        if comm.rank % 2:
            self._calls(run, comm, index, self.after)

    def _calls(self, run: Run, comm: Any, index: int, after: int) -> None:
        for time in range(self.times):
            call = Arguments(self, run, comm, index + 7 * time)
            method = self.name if self.mode == "blocking" else f"I{self.name.lower()}"
            request = getattr(comm, method)(*call.arguments)
            name = f"{index} {method} {time}"
            if self.temporary and call.send is not None:
                nbytes = len(call.send.memory)
                call.send = call.arguments = None
                run.churn(nbytes)
            if request is not None and self.beside and call.recv is not None:
                call.recv.beside()

            def finish(status: Any, found: Any, call: Arguments = call, name: str = name) -> None:
                run.note(name, call.read())
                if call.send is not None:
                    run.note(f"{name} send", call.send.all())

            if request is None:
                finish(None, None)
            else:
                run.later(Entry(name, request, finish), self.done, after if time + 1 == self.times else 0)
