"""A program as users write it, for a type checker: right as it stands, wrong with any line that follows `# wrong:`.

It runs with one rank of the host device, too: `PYNCCLX_DEVICE=host python typed_program.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

import pyncclx
from pyncclx import MPI

Vector = npt.NDArray[np.float64]


class Domain(pyncclx.Communicator):
    """A communicator with a name for each rank."""

    def label(self) -> str:
        # wrong: return self.rank
        return f"rank {self.rank} of {self.size}"


class Ring:
    """Messages around a ring."""

    def __init__(self, comm: pyncclx.Comm) -> None:
        self.comm = comm
        self.right: int = (comm.rank + 1) % comm.size
        self.left: int = (comm.rank - 1) % comm.size
        # wrong: self.next: str = comm.rank
        # wrong: self.world = comm.worldsize

    def shift(self, values: Vector) -> Vector:
        received = np.empty_like(values)
        requests: list[MPI.Request] = [
            self.comm.Irecv(received, self.left, 7),
            self.comm.Isend(values, self.right, 7),
        ]
        MPI.Request.Waitall(requests)
        # wrong: MPI.Request.WaitAll(requests)
        # wrong: self.comm.Irecv(received, "left", 7)
        # wrong: return requests
        return received

    def probe(self) -> int:
        status = MPI.Status()
        found: bool = self.comm.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG, status)
        # wrong: found: str = self.comm.Iprobe()
        # wrong: return status.Get_counts(MPI.DOUBLE)
        return status.Get_count(MPI.DOUBLE) if found else 0

    def matched(self) -> None:
        message = self.comm.Improbe()
        if message is not None:
            message.Recv(np.empty(1))
        # wrong: message.Recv(np.empty(1))


class Solver:
    """Sums over all ranks."""

    def __init__(self, comm: pyncclx.Intracomm, count: int) -> None:
        self.comm, self.count = comm, count
        self.partial: Any = comm.Alloc(count, "f8")
        # wrong: self.other = comm.Alloc()
        # wrong: self.other = comm.alloc(count)
        self.request: MPI.Prequest = comm.Allreduce_init(MPI.IN_PLACE, self.partial, op=MPI.SUM)
        # wrong: self.done: bool = comm.Allreduce_init(MPI.IN_PLACE, self.partial)

    def step(self) -> None:
        self.request.Start()
        self.request.Wait()
        # wrong: self.request.start()

    def sums(self, values: Vector) -> float:
        total = np.empty_like(values)
        self.comm.Allreduce(values, total, MPI.SUM)
        # wrong: self.comm.Allreduce(values)
        # wrong: self.comm.AllReduce(values, total)
        # wrong: self.comm.Allreduce(values, total, operator=MPI.SUM)
        self.comm.Allreduce(values, total, pyncclx.AVG)
        # wrong: self.comm.Allreduce(values, total, pyncclx.MEAN)
        return float(total.sum())

    def blocks(self, values: Vector) -> Vector:
        everything = np.empty((self.comm.size, values.size))
        self.comm.Allgather(values, everything)
        # wrong: self.comm.Allgather(values, everything, everything, everything)
        return everything

    def send_counts(self, rows: Vector, counts: npt.NDArray[np.int64]) -> Vector:
        received = np.empty((rows.shape[0] * self.comm.size, rows.shape[1]))
        arrived = np.empty(self.comm.size, np.int64)
        total = np.empty(1, np.int64)
        self.comm.Alltoallv([rows, counts], [received, arrived], layout="packed", total=total)
        # wrong: self.comm.Alltoallv([rows, counts], [received, arrived], lay_out="packed")
        return received

    def free(self) -> None:
        self.request.Free()


@contextmanager
def duplicate(comm: pyncclx.Intracomm) -> Iterator[pyncclx.Intracomm]:
    """A communicator for a while."""
    made = comm.Dup()
    try:
        yield made
    finally:
        made.Free()
        # wrong: made.Freed()


def window(comm: pyncclx.Intracomm) -> float:
    """One-sided operations."""
    memory = comm.Alloc(8, "f8")
    win = pyncclx.Win.Create(memory, 8, comm=comm)
    # wrong: pyncclx.Win.create(memory, 8, comm=comm)
    # wrong: pyncclx.Win.Create(memory, "8", comm=comm)
    win.Fence()
    win.Put(np.ones(8), comm.rank)
    # wrong: win.Put(np.ones(8))
    win.Fence()
    win.Put_signal(np.ones(8), comm.rank, signal=1)
    win.Wait_signal(1)
    # wrong: win.Wait_signal("1")
    win.Free()
    return float(memory.sum())


def experts(comm: pyncclx.Intracomm, tokens: npt.NDArray[np.float32]) -> Any:
    """Tokens to the ranks of their experts and back."""
    ids = np.zeros((len(tokens), 1), np.int64)
    hidden = tokens.shape[1]
    # wrong: comm.Create_token_shuffle(comm.size, 64, hidden, "float32")
    with comm.Create_token_shuffle(comm.size, 64, hidden, "float32", k=1, max_tokens=len(tokens)) as shuffle:
        rows, handle = shuffle.dispatch(tokens, ids)
        # wrong: shuffle.dispatch()
        # wrong: shuffle.despatch(tokens, ids)
        # wrong: shuffle.combine(rows.datum, handle)
        # wrong: shuffle.combine(rows.data, "handle")
        return shuffle.combine(rows.data, handle)


def largest(a: float, b: float) -> float:
    """An operator of the program's own, for GPUs compiled by Numba."""
    return a if a > b else b


def topologies(comm: pyncclx.Intracomm) -> tuple[int, ...]:
    """A grid of ranks."""
    grid = comm.Create_cart([comm.size], periods=[True])
    source, target = grid.Shift(0, 1)
    # wrong: grid.shift(0, 1)
    names = [comm.explain("Allreduce", 8), comm.device]
    # wrong: comm.explain(8, "Allreduce")
    comm.blocking = "stream"
    # wrong: comm.blocking = 3
    grid.Free()
    return source, target, len(names)


def failures(comm: pyncclx.Intracomm) -> str:
    """Exceptions."""
    try:
        comm.Allreduce(np.ones(3), np.ones(4))
    except pyncclx.PeerTimeout as error:
        # wrong: return error.peer_rank
        return f"{error.operation} of rank {error.peer}"
    except (pyncclx.NotSupported, ValueError, MPI.Exception) as error:
        return type(error).__name__
    # wrong: raise pyncclx.Timeout
    return ""


def main() -> None:
    comm = pyncclx.Communicator(MPI.COMM_WORLD)
    # wrong: comm = pyncclx.Communicator("world")
    # wrong: comm = pyncclx.Communicators(MPI.COMM_WORLD)
    world: MPI.Intracomm = MPI.COMM_WORLD
    # wrong: world = MPI.COMM_WRLD
    domain = Domain(MPI.COMM_WORLD)
    assert isinstance(comm, pyncclx.Communicator)
    comm.select_device()
    ring = Ring(comm)
    solver = Solver(comm, 16)
    # wrong: solver = Solver(comm)
    solver.step()
    shifted = ring.shift(np.arange(4.0))
    # wrong: shifted = ring.shift("abc")
    with duplicate(comm) as other:
        total = Solver(other, 4).sums(shifted)
    results = domain.label(), ring.probe(), window(comm), topologies(comm), failures(comm)
    experts(comm, np.ones((4, 32), np.float32))
    solver.send_counts(np.ones((comm.size, 2)), np.ones(comm.size, np.int64))
    solver.blocks(shifted)
    solver.free()
    print(world.rank, total, *results)
    # wrong: print(world.Rank)


if __name__ == "__main__":
    main()
