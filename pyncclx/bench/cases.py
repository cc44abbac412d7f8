"""What the benchmark runs: buffers of an operation, our call, what NCCL's needs, and the expected result."""

from __future__ import annotations

from typing import Any

import numpy as np
from mpi4py import MPI


def array_module(comm: Any) -> Any:
    """CuPy, or NumPy on the host device."""
    if comm.device == "host":
        return np
    import cupy  # noqa: PLC0415  only where there is a GPU

    return cupy


class Case:
    """One operation with its buffers.

    Attributes
    ----------
    nbytes, count : int
        Size in the sense of nccl-tests, and its number of elements.
    bus_factor : float
        Bytes over the busiest link for each byte of size, so that busbw can be compared with the wire.
    capturable : bool
        Whether a graph can hold it; --graph times it without one otherwise.
    send, recv : arrays
        Element i of rank r is ``i % 61 + r``: every rank's part can be told from every other's.
    """

    redop = "none"
    capturable = True
    send: Any
    recv: Any

    def __init__(self, comm: Any, nbytes: int, datatype: str) -> None:
        self.comm, self.xp = comm, array_module(comm)
        self.dtype = np.dtype(datatype)
        parts = self.parts(comm.size)
        self.count = max(nbytes // (self.dtype.itemsize * parts), 1) * parts
        self.nbytes = self.count * self.dtype.itemsize
        self.allocate()

    def parts(self, size: int) -> int:
        """Blocks that the size is divided into."""
        return size

    @property
    def bus_factor(self) -> float:
        return 1 - 1 / int(self.comm.size)

    def pattern(self, count: int, rank: int, first: int = 0) -> Any:
        """Elements `first` … of rank `rank`."""
        return ((self.xp.arange(first, first + count) % 61) + rank).astype(self.dtype)

    def empty(self, count: int) -> Any:
        return self.xp.full(count, 113, self.dtype)

    def allocate(self) -> None:
        raise NotImplementedError

    def run(self) -> None:
        raise NotImplementedError

    def expected(self) -> Any:
        raise NotImplementedError

    def wrong(self) -> int:
        """Run once and count the elements of recv that are not as expected."""
        self.recv[...] = 113
        self.run()
        self.comm.synchronize()
        return int((self.recv != self.expected()).sum())


class Allreduce(Case):
    redop = "sum"

    def parts(self, size: int) -> int:
        return 1

    @property
    def bus_factor(self) -> float:
        return 2 - 2 / int(self.comm.size)

    def allocate(self) -> None:
        self.send, self.recv = self.pattern(self.count, self.comm.rank), self.empty(self.count)

    def run(self) -> None:
        self.comm.Allreduce(self.send, self.recv, MPI.SUM)

    def expected(self) -> Any:
        size = self.comm.size
        return self.pattern(self.count, 0) * size + size * (size - 1) // 2


class Allgather(Case):
    def allocate(self) -> None:
        self.send, self.recv = self.pattern(self.count // self.comm.size, self.comm.rank), self.empty(self.count)

    def run(self) -> None:
        self.comm.Allgather(self.send, self.recv)

    def expected(self) -> Any:
        return self.xp.concatenate([self.pattern(len(self.send), rank) for rank in range(self.comm.size)])


class Alltoall(Case):
    def allocate(self) -> None:
        self.send, self.recv = self.pattern(self.count, self.comm.rank), self.empty(self.count)

    def run(self) -> None:
        self.comm.Alltoall(self.send, self.recv)

    def expected(self) -> Any:
        block, me = self.count // self.comm.size, self.comm.rank
        return self.xp.concatenate([self.pattern(block, rank, me * block) for rank in range(self.comm.size)])


class Alltoallv(Alltoall):
    """The dynamic all-to-all: equal counts that the host does not know, packed, all outputs asked for."""

    def allocate(self) -> None:
        super().allocate()
        size, block = self.comm.size, self.count // self.comm.size
        self.counts = self.xp.full(size, block, np.int64)
        self.recv_counts, self.recv_displs, self.status = (self.xp.zeros(size, np.int64) for _ in range(3))
        self.total = self.xp.zeros(1, np.int64)

    def run(self) -> None:
        recv = [self.recv, (self.recv_counts, self.recv_displs)]
        self.comm.Alltoallv([self.send, self.counts], recv, layout="packed", total=self.total, status=self.status)


class Sendrecv(Case):
    """A ring: everybody sends to the next rank. Messages are matched on the host, so not in graphs."""

    capturable = False

    def parts(self, size: int) -> int:
        return 1

    @property
    def bus_factor(self) -> float:
        return 1.0

    def allocate(self) -> None:
        self.send, self.recv = self.pattern(self.count, self.comm.rank), self.empty(self.count)
        self.next, self.previous = ((self.comm.rank + step) % self.comm.size for step in (1, -1))

    def run(self) -> None:
        self.comm.Sendrecv(self.send, self.next, 0, self.recv, self.previous, 0)

    def expected(self) -> Any:
        return self.pattern(self.count, self.previous)


class Bcast(Case):
    @property
    def bus_factor(self) -> float:
        return 1.0

    def parts(self, size: int) -> int:
        return 1

    def allocate(self) -> None:
        self.send = self.recv = self.pattern(self.count, 0)

    def run(self) -> None:
        self.comm.Bcast(self.recv)

    def expected(self) -> Any:
        return self.pattern(self.count, 0)

    def wrong(self) -> int:
        self.recv[...] = self.pattern(self.count, self.comm.rank)  # root's is what all get
        self.run()
        self.comm.synchronize()
        return int((self.recv != self.expected()).sum())


class Reduce(Allreduce):
    @property
    def bus_factor(self) -> float:
        return 1.0

    def run(self) -> None:
        self.comm.Reduce(self.send, self.recv, MPI.SUM)

    def expected(self) -> Any:
        return super().expected() if self.comm.rank == 0 else self.empty(self.count)


class ReduceScatterBlock(Case):
    redop = "sum"

    def allocate(self) -> None:
        block = self.count // self.comm.size
        self.send, self.recv = self.pattern(self.count, self.comm.rank), self.empty(block)

    def run(self) -> None:
        self.comm.Reduce_scatter_block(self.send, self.recv, MPI.SUM)

    def expected(self) -> Any:
        size, block = self.comm.size, len(self.recv)
        return self.pattern(block, 0, self.comm.rank * block) * size + size * (size - 1) // 2


class ReduceScatter(ReduceScatterBlock):
    """Equal counts, by the operation that takes any."""

    def run(self) -> None:
        self.comm.Reduce_scatter(self.send, self.recv, [len(self.recv)] * self.comm.size, MPI.SUM)


class Allgatherv(Allgather):
    """Equal counts, by the operation that takes any."""

    def run(self) -> None:
        self.comm.Allgatherv(self.send, [self.recv, len(self.send)])


class Gather(Allgather):
    def run(self) -> None:
        self.comm.Gather(self.send, self.recv)

    def expected(self) -> Any:
        return super().expected() if self.comm.rank == 0 else self.empty(self.count)


class Gatherv(Gather):
    """Equal counts, which root alone is told."""

    def run(self) -> None:
        self.comm.Gatherv(self.send, [self.recv, len(self.send)])


class Scatter(Case):
    def allocate(self) -> None:
        block = self.count // self.comm.size
        self.send, self.recv = self.pattern(self.count, self.comm.rank), self.empty(block)

    def run(self) -> None:
        self.comm.Scatter(self.send, self.recv)

    def expected(self) -> Any:
        return self.pattern(len(self.recv), 0, self.comm.rank * len(self.recv))


class Scatterv(Scatter):
    """Equal counts, which root alone is told."""

    def run(self) -> None:
        self.comm.Scatterv([self.send, len(self.recv)], self.recv)


class Scan(Allreduce):
    """The vector's way is that of an all-reduce; NCCL has none."""

    def run(self) -> None:
        self.comm.Scan(self.send, self.recv, MPI.SUM)

    def expected(self) -> Any:
        ranks = self.comm.rank + 1
        return self.pattern(self.count, 0) * ranks + ranks * (ranks - 1) // 2


class Exscan(Scan):
    def run(self) -> None:
        self.comm.Exscan(self.send, self.recv, MPI.SUM)

    def expected(self) -> Any:
        ranks = self.comm.rank
        return self.pattern(self.count, 0) * ranks + ranks * (ranks - 1) // 2 if ranks else self.empty(self.count)


CASES: dict[str, type[Case]] = {
    "allgather": Allgather,
    "allgatherv": Allgatherv,
    "allreduce": Allreduce,
    "alltoall": Alltoall,
    "alltoallv": Alltoallv,
    "bcast": Bcast,
    "exscan": Exscan,
    "gather": Gather,
    "gatherv": Gatherv,
    "reduce": Reduce,
    "reduce_scatter": ReduceScatter,
    "reduce_scatter_block": ReduceScatterBlock,
    "scan": Scan,
    "scatter": Scatter,
    "scatterv": Scatterv,
    "sendrecv": Sendrecv,
}
