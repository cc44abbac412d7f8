"""A program as users write it, for mypy --strict: all of it is right."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

import pyncclx
from pyncclx import MPI

Vector = npt.NDArray[np.float64]


class Counting(pyncclx.Communicator):
    """A communicator of the program's own."""

    calls: int = 0

    def total(self, value: float) -> float:
        """Return the sum over all ranks."""
        self.calls += 1
        found: float = self.allreduce(value, op=MPI.SUM)
        return found


@dataclass
class Domain:
    """A part of a grid, and its neighbours."""

    comm: MPI.Cartcomm
    below: int
    above: int
    cells: Vector

    @classmethod
    def make(cls, comm: MPI.Intracomm, count: int) -> Domain:
        """Divide `count` cells among the ranks."""
        cart = comm.Create_cart([comm.size], periods=[True], reorder=False)
        below, above = cart.Shift(0, 1)
        return cls(cart, below, above, np.zeros(count // comm.size + 2))

    def exchange(self) -> None:
        """Fill the halo."""
        requests: list[MPI.Request] = [
            self.comm.Irecv(self.cells[:1], source=self.below, tag=1),
            self.comm.Irecv(self.cells[-1:], source=self.above, tag=2),
            self.comm.Isend(self.cells[1:2], dest=self.below, tag=2),
            self.comm.Isend(self.cells[-2:-1], dest=self.above, tag=1),
        ]
        MPI.Request.Waitall(requests)

    def residual(self) -> float:
        """Return the norm of what the cells differ by, over all ranks."""
        mine, whole = np.array([float(np.abs(np.diff(self.cells)).sum())]), np.zeros(1)
        self.comm.Allreduce(mine, whole, op=MPI.MAX)
        return float(whole[0])


def collectives(comm: pyncclx.Intracomm) -> Vector:
    """Every kind of collective once."""
    size, rank = comm.size, comm.Get_rank()
    x, y, many = np.ones(4), np.empty(4), np.empty(4 * size)
    comm.Bcast(x, root=0)
    comm.Allreduce(x, y)
    comm.Allreduce(MPI.IN_PLACE, y, op=pyncclx.AVG)
    comm.Reduce(x, y if rank == 0 else None, op=MPI.SUM, root=0)
    comm.Allgather(x, many)
    comm.Allgatherv(x, [many, [4] * size])
    comm.Alltoall(many, many.copy(), algorithm=None)
    comm.Scatter(many if rank == 0 else None, x, root=0)
    comm.Gather(x, many if rank == 0 else None, root=0)
    comm.Scan(x, y)
    comm.Barrier()
    comm.Barrier(device=True)
    request = comm.Iallreduce(x, y)
    request.Wait()
    started = comm.Allreduce_init(x, y)
    started.Start()
    started.Wait()
    started.Free()
    return y


def messages(comm: pyncclx.Intracomm) -> int:
    """Sends, receives and probes."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    status = MPI.Status()
    x, y = np.arange(3.0), np.empty(3)
    sending = comm.Isend([x, 3, MPI.DOUBLE], dest=right)
    comm.Probe(source=left, tag=MPI.ANY_TAG, status=status)
    count: int = status.Get_count(MPI.DOUBLE)
    comm.Recv(y, source=status.source, tag=status.Get_tag(), status=status)
    sending.Wait()
    message = comm.Improbe(MPI.ANY_SOURCE)
    if message is not None:
        message.Recv(y)
    comm.Sendrecv(x, right, recvbuf=y, source=left)
    return count


def objects(comm: pyncclx.Intracomm) -> list[str]:
    """Methods with a lower-case name."""
    state: dict[str, Vector] = comm.bcast({"w": np.ones(3)}, root=0)
    request = comm.isend(state, dest=comm.rank)
    received = comm.recv(source=comm.rank)
    request.wait()
    names: list[str] = comm.allgather(f"rank {comm.rank}, {len(received)}")
    return names


def windows(comm: pyncclx.Intracomm) -> None:
    """One-sided operations, and memory that all ranks have mapped."""
    memory = comm.Alloc((4, 2), "f8")
    window = MPI.Win.Create(memory, disp_unit=8, comm=comm)
    window.Fence()
    window.Put(np.ones(2), (comm.rank + 1) % comm.size)
    window.Fence()
    window.Free()


def communicators() -> Iterator[pyncclx.Comm]:
    """Ways to get one."""
    world = pyncclx.Communicator()
    yield world
    yield pyncclx.Communicator(MPI.COMM_SELF)
    half = world.Split(world.rank % 2, key=world.rank)
    if isinstance(half, pyncclx.Communicator):
        yield half
    yield world.Dup()
    node = world.Split_type(MPI.COMM_TYPE_SHARED)
    node.Free()


def datatypes() -> MPI.Datatype:
    """A column of a matrix."""
    column = MPI.DOUBLE.Create_vector(4, 1, 8)
    column.Commit()
    lower, extent = column.Get_extent()
    assert lower + extent > 0
    return column


def main() -> int:
    """Run all of it."""
    comm = pyncclx.Communicator(MPI.COMM_WORLD)
    device: str = comm.device
    comm.select_device()
    comm.blocking = "host"
    started: float = MPI.Wtime()
    domain = Domain.make(comm, 64)
    domain.exchange()
    report: str = comm.explain("Allreduce", 4096)
    try:
        collectives(comm)
        total = Counting(comm).total(domain.residual()) + messages(comm)
    except pyncclx.PeerTimeout as error:
        print(error, device, report)
        return 1
    except MPI.Exception as error:
        print(error.Get_error_class(), error.Get_error_string())
        return 2
    windows(comm)
    datatypes().Free()
    comm.synchronize()
    print(total, objects(comm), MPI.Wtime() - started, MPI.Get_library_version()[:20])
    return sum(1 for _ in communicators()) - 4


if __name__ == "__main__":
    raise SystemExit(main())
