"""Operations of random kind, size, datatype, root and communicator, back to back, each compared with mpi4py's.

    mpiexec -n 8 python tests/soak.py --operations 1000000 [--seed N] [--most BYTES]

Some are nonblocking, some in place, some between windows; sizes begin anywhere. A batch of them is enqueued without
waiting; then mpi4py does the same on host arrays, and every element is compared, those too that nobody may write.
Elements are small integers in every datatype: sums and products of them are exact in any order.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

import pyncclx
from arrays import get, xp

BATCH = 50
POISON = 77
DTYPES = ("i1", "u1", "i2", "i4", "i8", "f4", "f8", "c8", "c16")
OPS = (MPI.SUM, MPI.PROD, MPI.MAX)  # the last has no meaning for complex numbers
NEVER_NONBLOCKING = ("Sendrecv", "Barrier")


class Pair(NamedTuple):
    """An array on the device, and its equal on the host."""

    device: Any
    host: np.ndarray


class Job(NamedTuple):
    """One operation: arguments on the device and on the host, and what to compare."""

    method: str
    arguments: Sequence[Any]
    host_arguments: Sequence[Any]
    outputs: Sequence[Pair]
    keywords: dict[str, Any]


def side(argument: Any, which: int) -> Any:
    """An argument with all its pairs replaced by one of the two."""
    if isinstance(argument, Pair):
        return argument[which]
    return [side(each, which) for each in argument] if isinstance(argument, list) else argument


class Maker:
    """Makes the jobs of one communicator. `shared` draws the same on all ranks, `own` does not."""

    def __init__(self, comm: Any, seed: int, most: int) -> None:
        self.comm, self.size, self.rank = comm, comm.size, comm.rank
        self.shared = np.random.default_rng(seed)
        self.own = np.random.default_rng([seed, MPI.COMM_WORLD.rank])
        self.most = most
        data = self.own.integers(0, 3, 2 * most)
        self.pools = {dtype: Pair(xp.asarray(data.astype(dtype)), data.astype(dtype)) for dtype in DTYPES}
        self.window = comm.Alloc(4 * BATCH * most, "u1")
        self.used = 0  # bytes of the window

    def job(self) -> Job:
        """Draw one."""
        self.dtype = DTYPES[self.shared.integers(len(DTYPES))]
        self.itemsize = np.dtype(self.dtype).itemsize
        self.op = OPS[self.shared.integers(2 if self.dtype[0] == "c" else 3)]
        self.root = int(self.shared.integers(self.size))
        self.in_place = bool(self.shared.integers(4) == 0)
        kind = KINDS[self.shared.integers(len(KINDS))]
        return kind(self)

    def count(self, blocks: int = 1) -> int:
        """Elements of a block, sometimes none, more often few than many."""
        most = self.most // (self.itemsize * blocks)
        return 0 if self.shared.integers(20) == 0 else int(2 ** self.shared.uniform(0, np.log2(most)))

    def counts(self) -> np.ndarray:
        """What each rank sends to each."""
        return np.array([[self.count(self.size) for _ in range(self.size)] for _ in range(self.size)])

    def sent(self, count: int) -> Pair:
        """Something to send, which begins anywhere."""
        pool = self.pools[self.dtype]
        begin = int(self.own.integers(len(pool.host) - count))
        return Pair(pool.device[begin : begin + count], pool.host[begin : begin + count])

    def room(self, count: int) -> Pair:
        """Something to receive, poisoned; sometimes in a window."""
        nbytes = count * self.itemsize
        begin = (self.used + 15) // 16 * 16 + int(self.own.integers(4)) * self.itemsize
        if self.own.integers(3) == 0 and begin + nbytes <= len(self.window):
            self.used = begin + nbytes
            device = self.window[begin : begin + nbytes].view(self.dtype)
        else:
            device = xp.empty(count, self.dtype)
        device[...] = POISON
        return Pair(device, np.full(count, POISON, self.dtype))

    def both(self, count: int) -> Pair:
        """Something to receive that has something to send in it."""
        sent, room = self.sent(count), self.room(count)
        room.device[...], room.host[...] = sent
        return room


def job(method: str, arguments: Sequence[Any], outputs: Sequence[Pair], **keywords: Any) -> Job:
    """A job with the same arguments for both."""
    device, host = ([side(argument, which) for argument in arguments] for which in (0, 1))
    return Job(method, device, host, outputs, keywords)


def bcast(m: Maker) -> Job:
    buffer = m.both(m.count())
    return job("Bcast", (buffer, m.root), [buffer])


def allreduce(m: Maker) -> Job:
    count = m.count()
    recv = m.both(count)
    return job("Allreduce", (MPI.IN_PLACE if m.in_place else m.sent(count), recv, m.op), [recv])


def reduce(m: Maker) -> Job:
    count = m.count()
    recv = m.both(count)
    in_place = m.in_place and m.rank == m.root
    return job("Reduce", (MPI.IN_PLACE if in_place else m.sent(count), recv, m.op, m.root), [recv])


def prefix(m: Maker) -> Job:
    count = m.count()
    recv = m.both(count)
    return job(("Scan", "Exscan")[m.shared.integers(2)], (m.sent(count), recv, m.op), [recv])


def reduce_scatter_block(m: Maker) -> Job:
    count = m.count(m.size)
    recv = m.room(count)
    return job("Reduce_scatter_block", (m.sent(count * m.size), recv, m.op), [recv])


def reduce_scatter(m: Maker) -> Job:
    counts = m.counts()[0].tolist()
    if m.in_place:
        whole = m.both(sum(counts))
        mine = Pair(*(each[: counts[m.rank]] for each in whole))  # MPI says nothing of the rest
        return job("Reduce_scatter", (MPI.IN_PLACE, whole, counts, m.op), [mine])
    recv = m.room(counts[m.rank])
    return job("Reduce_scatter", (m.sent(sum(counts)), recv, counts, m.op), [recv])


def allgather(m: Maker) -> Job:
    count = m.count(m.size)
    recv = m.both(count * m.size)
    return job("Allgather", (MPI.IN_PLACE if m.in_place else m.sent(count), recv), [recv])


def allgatherv(m: Maker) -> Job:
    counts = m.counts()[0].tolist()
    recv = m.room(sum(counts))
    return job("Allgatherv", (m.sent(counts[m.rank]), [recv, counts]), [recv])


def gather(m: Maker) -> Job:
    count = m.count(m.size)
    recv = m.room(count * m.size)
    return job("Gather", (m.sent(count), recv if m.rank == m.root else None, m.root), [recv])


def gatherv(m: Maker) -> Job:
    counts = m.counts()[0].tolist()
    recv = m.room(sum(counts))
    return job("Gatherv", (m.sent(counts[m.rank]), [recv, counts] if m.rank == m.root else None, m.root), [recv])


def scatter(m: Maker) -> Job:
    count = m.count(m.size)
    recv = m.room(count)
    return job("Scatter", (m.sent(count * m.size) if m.rank == m.root else None, recv, m.root), [recv])


def scatterv(m: Maker) -> Job:
    counts = m.counts()[0].tolist()
    recv = m.room(counts[m.rank])
    return job("Scatterv", ([m.sent(sum(counts)), counts] if m.rank == m.root else None, recv, m.root), [recv])


def alltoall(m: Maker) -> Job:
    count = m.count(m.size)
    recv = m.both(count * m.size)
    return job("Alltoall", (MPI.IN_PLACE if m.in_place else m.sent(count * m.size), recv), [recv])


def alltoallv(m: Maker) -> Job:
    matrix = m.counts()
    sends, recvs = matrix[m.rank].tolist(), matrix[:, m.rank].tolist()
    recv = m.room(sum(recvs))
    return job("Alltoallv", ([m.sent(sum(sends)), sends], [recv, recvs]), [recv])


def dynamic(m: Maker) -> Job:
    """Counts on the device, more room than is needed."""
    matrix = m.counts()
    sends, recvs = matrix[m.rank], matrix[:, m.rank]
    send, recv = m.sent(int(sends.sum())), m.room(int(recvs.sum()) + 3)
    found = Pair(xp.full(m.size, -1, "i8"), recvs)
    arguments = [send.device, xp.asarray(sends)], [recv.device, found.device]
    host = [send.host, sends.tolist()], [recv.host, recvs.tolist()]
    return Job("Alltoallv", arguments, host, [recv, found], {"layout": "packed"})


def sendrecv(m: Maker) -> Job:
    """Around a ring, with a stride."""
    count, step = m.count(), int(m.shared.integers(m.size))
    recv = m.room(count)
    to, source, tag = (m.rank + step) % m.size, (m.rank - step) % m.size, step
    return job("Sendrecv", (m.sent(count), to, tag, recv, source, tag), [recv])


def barrier(m: Maker) -> Job:
    return Job("Barrier", (), (), [], {"device": True})


KINDS: tuple[Callable[[Maker], Job], ...] = (
    *(bcast, allreduce, reduce, prefix, reduce_scatter_block, reduce_scatter, allgather, allgatherv, gather, gatherv),
    *(scatter, scatterv, alltoall, alltoallv, dynamic, sendrecv, barrier),
)


class Soak:
    """The communicators, and a count of what has been done."""

    def __init__(self, seed: int, most: int) -> None:
        world = pyncclx.Communicator(MPI.COMM_WORLD)
        halves = world.Split(world.rank % 2, world.rank)
        self.comms = [world.Dup(), world.Split(0, -world.rank), halves]
        self.makers = [Maker(comm, seed + i, most) for i, comm in enumerate(self.comms)]
        self.shared = np.random.default_rng([seed, 99])
        self.done: Counter[str] = Counter()

    def batch(self, length: int) -> list[str]:
        """Do some operations; returns what is wrong on this rank. Collective."""
        jobs, requests = [], []
        for _ in range(length):
            maker = self.makers[self.shared.integers(len(self.makers))]
            each = maker.job()
            jobs.append((maker.comm, each))
            if self.shared.integers(4) == 0 and each.method not in NEVER_NONBLOCKING:
                requests.append(getattr(maker.comm, f"I{each.method.lower()}")(*each.arguments, **each.keywords))
            else:
                getattr(maker.comm, each.method)(*each.arguments, **each.keywords)
        pyncclx.Request.Waitall(requests)
        for comm, each in jobs:
            plain = MPI.Intracomm(comm)
            getattr(plain, each.method)(*each.host_arguments)
            self.done[each.method] += 1
        for maker in self.makers:
            maker.comm.synchronize()
            maker.used = 0
        return [text for index, (comm, each) in enumerate(jobs) for text in self.wrong(index, comm, each)]

    def wrong(self, index: int, comm: Any, each: Job) -> list[str]:
        """What one operation has got wrong."""
        texts = []
        for output in each.outputs:
            found = get(output.device)
            places = np.flatnonzero(found != output.host)
            if places.size:
                first = places[0]
                what = f"{found[first]} instead of {output.host[first]}, {places.size} of {found.size} in all"
                where = f"operation {index} of the batch, {each.method} of {found.dtype} among {comm.size} ranks"
                texts.append(f"{where}: rank {comm.rank}, element {first} is {what}")
        return texts

    def free(self) -> None:
        """Release the communicators. Collective."""
        for comm in self.comms:
            comm.Free()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operations", type=int, default=10_000, metavar="N", help="how many (default 10000)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of all that is drawn (default 1)")
    parser.add_argument("--most", type=int, default=1 << 18, metavar="BYTES", help="longest message (default 256 K)")
    options = parser.parse_args()
    world, begin = MPI.COMM_WORLD, time.perf_counter()
    soak = Soak(options.seed, options.most)
    last = begin
    while (done := soak.done.total()) < options.operations:
        wrong = soak.batch(min(BATCH, options.operations - done))
        every = [text for texts in world.allgather(wrong) for text in texts]
        if every:
            if world.rank == 0:
                print(f"after {done} operations with seed {options.seed}:", *every[:20], sep="\n", flush=True)
            return 1
        if world.rank == 0 and time.perf_counter() - last > 5:
            last = time.perf_counter()
            print(f"{soak.done.total()} of {options.operations} operations, none wrong", flush=True)
    if world.rank == 0:
        kinds = ", ".join(f"{method} {count}" for method, count in sorted(soak.done.items()))
        print(f"{soak.done.total()} operations on {world.size} ranks in {time.perf_counter() - begin:.0f} s: {kinds}")
        print("no element was wrong: PASSED", flush=True)
    soak.free()
    return 0


if __name__ == "__main__":
    sys.exit(main())
