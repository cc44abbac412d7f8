"""Measure the links' bandwidth, which bounds long messages between mapped arrays.

    mpiexec -n 2 python -m mpi4py examples/benchmarks/links.py [--json results.json]

A kernel that only moves memory (links.cu) does so by stores or by loads, on several numbers of blocks and threads; or a
copy engine moves it. The patterns are:
    one   rank 0 to the next rank, as in Bcast; by loads from the next rank, as in Reduce. No other rank moves anything
    ring  each rank to the next one: both directions of a link at the same time
    all   each rank to all others, one after the other, beginning with the next, as in an all-to-all
PYNCCLX_DEVICE=host runs it on the CPU, without copy engines; this measures no link.
"""

import argparse
import itertools
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

import pyncclx
import pyncclx.device as d
from pyncclx.tools.bench import environment, timing

WAYS = ("stores", "loads")
SOURCE, TARGET = range(2)
PATTERNS = ("one", "ring", "all")
AT_ONCE = 4  # packs that a thread moves at once, as in the library's kernels
SHAPES = ((16, 1024), (32, 512), (64, 512), (64, 1024), (132, 512))  # blocks, threads
SHAPES_ON_HOST = ((2, 64),)
ARGUMENTS = np.dtype("u8,u8,u8")  # Moves of links.cu


class World:
    """Two arrays of each rank, which all ranks have mapped."""

    def __init__(self, nbytes: int) -> None:
        self.comm = pyncclx.Communicator(MPI.COMM_WORLD)
        self.comm.select_device()
        self.size, self.rank, self.host = self.comm.size, self.comm.rank, self.comm.device == "host"
        self.nbytes, self.iterations = nbytes, 1 if self.host else 20
        self.arrays = [self.comm.Alloc(nbytes, "u1") for _ in (SOURCE, TARGET)]
        self.wins = [pyncclx.Win.Create(array, 1, comm=self.comm) for array in self.arrays]
        self.arrays[SOURCE][...] = self.rank + 1
        self.kernel = d.kernel(Path(__file__).with_suffix(".cu"), f"move<{AT_ONCE}>")
        self.queue = timing.queue_of(self.comm)

    def place(self, which: int, rank: int) -> int:
        """Return the address here of a rank's first or second array."""
        array = self.arrays[which] if rank == self.rank else self.wins[which].remote(rank)
        return int(array.ctypes.data if self.host else array.data.ptr)

    def moves(self, way: str, pattern: str) -> list[tuple[int, int, int]]:
        """Return the moves of this rank: source, target, bytes."""
        if pattern == "one" and self.rank != 0:
            return []
        moves, block = [], self.block(pattern)
        for peer in ((self.rank + j) % self.size for j in range(1, self.size if pattern == "all" else 2)):
            giver, taker = (peer, self.rank) if way == "loads" else (self.rank, peer)
            source = self.place(SOURCE, giver) + taker * block % self.nbytes
            moves.append((source, self.place(TARGET, taker) + giver * block % self.nbytes, block))
        return moves

    def block(self, pattern: str) -> int:
        """Return the bytes that a rank moves between itself and another rank."""
        return self.nbytes // (self.size if pattern == "all" else 1) // 16 * 16

    def came(self, way: str, pattern: str) -> int:
        """Return how many bytes of this rank's second array are wrong."""
        ranks = range(self.size) if pattern == "all" else [(self.rank + (1 if way == "loads" else -1)) % self.size]
        block = self.block(pattern)
        idle = pattern == "one" and self.rank != (0 if way == "loads" else 1)
        parts = [] if idle else [(rank, rank * block % self.nbytes) for rank in ranks if rank != self.rank]
        return sum(int((self.arrays[TARGET][at : at + block] != rank + 1).sum()) for rank, at in parts)

    def measure(self, way: str, pattern: str, *shape: int) -> dict[str, Any]:
        """Time and check one way to move memory, for one shape. Collective."""
        device, moves = self.comm.team.device, self.moves(way, pattern)
        packed = [(np.array(move, ARGUMENTS)[()],) for move in moves]

        def by_kernel() -> None:
            for arguments in packed:
                self.kernel(*shape, arguments)

        def by_copy_engine() -> None:
            for source, to, nbytes in moves:
                device.copy(to, source, nbytes, self.queue.stream)

        self.arrays[TARGET][...] = 0
        call = by_kernel if shape else by_copy_engine
        times = timing.time(self.comm, self.queue, call, self.iterations, 1, graph=False)
        nbytes = self.block(pattern) * (self.size - 1 if pattern == "all" else 1)
        return {
            "way": way,
            "pattern": pattern,
            **dict(zip(("blocks", "threads"), shape, strict=False)),
            "nbytes": nbytes,
            "time_us": round(times.slowest, 1),
            "gbs": round(nbytes / times.slowest / 1e3, 1),
            "wrong": MPI.COMM_WORLD.allreduce(self.came(way, pattern)),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=int, default=128 << 20, metavar="N", help="on each rank (default 128 M)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results")
    options = parser.parse_args()
    world, results = World(options.bytes), []
    if world.size == 1:
        raise SystemExit("links.py: one rank has no links; start it with mpiexec -n 2, or more")
    kinds: list[tuple[Any, ...]] = list(itertools.product(WAYS, PATTERNS, SHAPES_ON_HOST if world.host else SHAPES))
    if not world.host:
        kinds += [("copy engine", pattern, ()) for pattern in PATTERNS]
    for way, pattern, shape in kinds:
        results.append(world.measure(way, pattern, *shape))
        if world.rank == 0:
            print("  ".join(f"{name} {value}" for name, value in results[-1].items()), flush=True)
        if results[-1]["wrong"]:
            raise SystemExit(1)
    if world.rank == 0:
        environment.write_json(options.json, environment.of(world.comm), {"results": results})


if __name__ == "__main__":
    main()
