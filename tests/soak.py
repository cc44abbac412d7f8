"""Operations of random kind, size, datatype, root and communicator, back to back, each compared with mpi4py's.

    mpiexec -n 8 python tests/soak.py --operations 1000000 [--seed N] [--most BYTES]

Some are nonblocking, some begin in other orders on other ranks, some are in place or between windows; sizes begin
anywhere. Messages and token shuffles are among them, memory that is registered for one operation, communicators that
MPI frees without this library, and on GPUs calls that are captured between calls on other streams. A batch is enqueued
without waiting; then mpi4py does the same on host arrays, and every element is compared, those too that no operation
may write. Elements are small integers in every datatype: their sums and products are exact in any order.

Ranks that share a GPU under MPS need CUDA_DEVICE_MAX_CONNECTIONS=16 (docs/sharp_bits.md), four of them at most.

On the host device it also fails where a process ends with more memory or descriptors than it may: see `leaks`.
"""

import argparse
import gc
import os
import resource
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

import pyncclx
from support.arrays import HOST, xp
from support.soak_jobs import BATCH, DTYPES, Job, Maker
from support.soak_kinds import allgather, draw

# By then kernels are loaded, and pools and caches have what they keep.
SETTLED = 2000  # operations
# On 4 ranks of the host device memory grew by 14.6 MB in the 8000 operations after these, seed 1, and by 4 MB to and
# fro from one look to the next (25 November 2026).
MOST_MB, MOST_MB_OF_THOUSAND = 8.0, 3.0
# Of each long message its sender keeps a copy, with two descriptors, until it finds that it has arrived. There were 85
# to 136 descriptors in those 10000 operations, as many at the end as after 3000.
MOST_DESCRIPTORS = 2 * BATCH


class Soak:
    """The communicators, and a count of what has been done."""

    def __init__(self, seed: int, most: int, dtypes: Sequence[str] = DTYPES) -> None:
        world = pyncclx.Communicator(MPI.COMM_WORLD)
        halves = world.Split(world.rank % 2, world.rank)
        self.comms = [world.Dup(), world.Split(0, -world.rank), halves]
        self.makers = [Maker(comm, seed + i, most, dtypes) for i, comm in enumerate(self.comms)]
        self.shared = np.random.default_rng([seed, 99])
        self.own = np.random.default_rng([seed, 98, world.rank])
        for maker in self.makers:  # loads the kernel, which the ranks do together
            maker.comm.Allgather(xp.zeros(1, "u1"), xp.zeros(maker.size, "u1"))
        self.done: Counter[str] = Counter()

    def batch(self, length: int) -> list[str]:
        """Do some operations; returns what is wrong on this rank. Collective."""
        jobs: list[tuple[Any, Job]] = []
        requests: list[MPI.Request] = []
        while len(jobs) < length:
            if self.shared.integers(20) == 0:
                requests += self._begin_in_any_order(jobs)
                continue
            maker = self.makers[self.shared.integers(len(self.makers))]
            job = draw(maker)
            jobs.append((maker.comm, job))
            requests += job.start(maker.comm, nonblocking=bool(self.shared.integers(4) == 0))
        pyncclx.Request.Waitall(requests)
        for comm, job in jobs:
            job.repeat(MPI.Intracomm(comm))
            self.done[job.kind] += 1
        for maker in self.makers:
            maker.comm.synchronize()
            maker.used = 0
        return [
            f"operation {index} of the batch, {job.kind} among {comm.size} ranks: rank {comm.rank}, {text}"
            for index, (comm, job) in enumerate(jobs)
            for text in job.wrong()
        ]

    def _begin_in_any_order(self, jobs: list[tuple[Any, Job]]) -> list[MPI.Request]:
        """Begin collectives on all communicators, in an order among these that each rank draws for itself."""
        turns = []
        for maker in self.makers:
            for _ in range(self.shared.integers(1, 4)):
                maker.draw()
                turns.append((maker, allgather(maker)))
        jobs += [(maker.comm, job) for maker, job in turns]
        order = self.own.permutation([self.makers.index(maker) for maker, _ in turns])
        left = [iter([job for other, job in turns if other is maker]) for maker in self.makers]
        begun = [next(left[index]).start(self.makers[index].comm, nonblocking=True) for index in order]
        return [request for requests in begun for request in requests]

    def free(self) -> None:
        """Release the communicators. Collective."""
        for comm in self.comms:
            comm.Free()


def held() -> np.ndarray:
    """Bytes of this process that are in memory, and its open descriptors; without what Python would collect."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return np.array([pages * resource.getpagesize(), len(os.listdir("/proc/self/fd"))])


def leaks(nbytes: int, descriptors: int, operations: int) -> list[str]:
    """What has grown by too much in so many operations after the first ones."""
    most = 1e6 * (MOST_MB + MOST_MB_OF_THOUSAND * operations / 1000)
    texts = [f"{nbytes / 1e6:.1f} MB more, of {most / 1e6:.1f} at most"] if nbytes > most else []
    if descriptors > MOST_DESCRIPTORS:
        texts.append(f"{descriptors} descriptors more, of {MOST_DESCRIPTORS} at most")
    return texts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operations", type=int, default=10_000, metavar="N", help="how many (default 10000)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of all that is drawn (default 1)")
    parser.add_argument("--most", type=int, default=1 << 18, metavar="BYTES", help="longest message (default 256 K)")
    options = parser.parse_args()
    world, begin = MPI.COMM_WORLD, time.perf_counter()
    soak = Soak(options.seed, options.most)
    last, before, first = begin, held(), 0
    while (done := soak.done.total()) < options.operations:
        wrong = soak.batch(min(BATCH, options.operations - done))
        every = [text for texts in world.allgather(wrong) for text in texts]
        if every:
            if world.rank == 0:
                print(f"after {done} operations with seed {options.seed}:", *every[:20], sep="\n", flush=True)
            return 1
        if first == 0 and soak.done.total() >= max(SETTLED, options.operations // 5):
            before, first = held(), soak.done.total()
        if world.rank == 0 and time.perf_counter() - last > 5:
            last = time.perf_counter()
            print(f"{soak.done.total()} of {options.operations} operations, none wrong", flush=True)
    grown = held() - before
    most = np.empty_like(grown)
    world.Allreduce(grown, most, MPI.MAX)
    if world.rank == 0:
        kinds = ", ".join(f"{method} {count}" for method, count in sorted(soak.done.items()))
        print(f"{soak.done.total()} operations on {world.size} ranks in {time.perf_counter() - begin:.0f} s: {kinds}")
        print(f"since operation {first}: {most[0] / 1e6:.1f} MB and {most[1]} descriptors more, on the rank with most")
    grown_too_much = leaks(*most.tolist(), soak.done.total() - first) if HOST and first else []
    if world.rank == 0:
        print("no element was wrong:", "; ".join(grown_too_much) or "PASSED", flush=True)
    soak.free()
    return int(bool(grown_too_much))


if __name__ == "__main__":
    sys.exit(main())
