"""Measure an all-to-all through rings: the bound of long messages in plain arrays.

    mpiexec -n 4 python -m mpi4py examples/benchmarks/rings.py [--json results.json]

Every rank sends a block to every other rank, through rings in a memory of given size, by warps that do not wait for
other warps. The four ways (rings.cu) differ in how the receiver finds what has arrived. "straight" has no signals: its
bandwidth is the bound, and the difference to it is the cost of signals. PYNCCLX_DEVICE=host runs all but "lines" on the
CPU; lines need a GPU.
"""

import argparse
import itertools
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

import pyncclx
import pyncclx.device as d
from pyncclx.tools.bench import environment

WAYS = ("straight", "stores", "flags", "lines")  # as in rings.cu
ROWS = (4, 8)  # rows of 512 bytes in a place of a ring
SHAPES = ((4, 64, 768), (4, 128, 384), (4, 128, 768), (8, 128, 384))  # rows, blocks, threads
SHAPES_ON_HOST = ((4, 2, 256), (8, 1, 256))
MEMORY = 6 << 20  # bytes for the rings of a rank
ARGUMENTS = np.dtype("u8,u8,u8,u8,u8,i4,i4,u4,u4,u8,u8")  # Streams of rings.cu


class Shape(NamedTuple):
    """How the work is divided."""

    way: int
    rows: int
    blocks: int
    threads: int

    def streams(self, peers: int) -> int:
        """Return the number of warps for each peer and direction."""
        jobs = peers * (2 if WAYS[self.way] in ("flags", "lines") else 1)
        return self.blocks * (self.threads // 32 // jobs)

    def depth(self, peers: int) -> int:
        """Return the number of places of a ring."""
        return max(2, MEMORY // (self.streams(peers) * peers * self.rows * 512))


class World:
    """Arrays and rings of all ranks."""

    def __init__(self, nbytes: int) -> None:
        self.comm = pyncclx.Communicator(MPI.COMM_WORLD)
        self.comm.select_device()
        self.size, self.rank, self.host = self.comm.size, self.comm.rank, self.comm.device == "host"
        self.xp = np if self.host else __import__("cupy")
        self.rings, self.send, self.recv = (self.comm.Alloc(n, "u1") for n in (4 * MEMORY, nbytes, nbytes))
        self.tables = [self.addresses(array) for array in (self.rings, self.recv)]
        self.failed = self.xp.zeros(1, "u4")
        names = [f"all_to_all<{way}, {rows}>" for way in range(len(WAYS)) for rows in ROWS]
        self.kernels = d.kernels(Path(__file__).with_suffix(".cu"), *names)

    def address(self, array: Any) -> int:
        """Return the address of an array."""
        return int(array.ctypes.data if self.host else array.data.ptr)

    def addresses(self, array: Any) -> Any:
        """Return the addresses here of each rank's array, in device memory."""
        win = pyncclx.Win.Create(array, 1, comm=self.comm)
        return self.xp.array([self.address(win.remote(rank)) for rank in range(self.size)], "u8")

    def measure(self, shape: Shape, nbytes: int, iterations: int) -> dict[str, Any]:
        """Time an all-to-all of `nbytes` on each rank, and check it. Collective."""
        kernel = self.kernels[f"all_to_all<{shape.way}, {shape.rows}>"]
        peers, block, way = self.size - 1, nbytes // self.size // 16 * 16, WAYS[shape.way]
        units = -(-block // ((480 if way == "lines" else 512) * shape.rows * shape.streams(peers)))
        addresses = [self.address(array) for array in (self.send, self.recv)]
        tables = [self.address(table) for table in self.tables]
        self.rings[...] = self.recv[...] = 0
        self.words(self.send, block)[...] = self.sent(self.rank, range(self.size), block)

        def calls(numbers: range) -> float:
            self.meet()
            begin = time.perf_counter()
            for number in numbers:
                counts = (self.size, self.rank, shape.depth(peers), 0, number * units, self.address(self.failed))
                kernel(shape.blocks, shape.threads, (np.array((*addresses, block, *tables, *counts), ARGUMENTS)[()],))
            self.wait()
            return time.perf_counter() - begin

        calls(range(1))
        # In this way no kernel waits for data.
        self.meet()
        wrong = 0 if way == "stores" else self.wrong(block)
        seconds = max(MPI.COMM_WORLD.allgather(calls(range(1, iterations + 1)))) / iterations
        return {
            "way": way,
            "place_nbytes": shape.rows * 512,
            "places": shape.depth(peers),
            "blocks": shape.blocks,
            "threads": shape.threads,
            "nbytes": nbytes,
            "time_us": round(seconds * 1e6, 1),
            "gbs": round(block * peers / seconds / 1e9, 1),
            "wrong": MPI.COMM_WORLD.allreduce(wrong),
            "failed": MPI.COMM_WORLD.allreduce(int(self.failed[0])),
        }

    def words(self, array: Any, block: int) -> Any:
        """Return an array's blocks as words."""
        return array[: self.size * block].view("u4").reshape(self.size, -1)

    def sent(self, source: int, ranks: range, block: int) -> Any:
        """Return what a rank sends to other ranks."""
        numbers = self.xp.arange(block // 4, dtype="u4") * 7
        return numbers[None] + self.xp.array([[source << 28 | rank << 24] for rank in ranks], "u4")

    def wrong(self, block: int) -> int:
        """Return how many words received from other ranks are wrong."""
        got, me = self.words(self.recv, block), self.rank
        others = [rank for rank in range(self.size) if rank != me]
        return sum(int((got[rank] != self.sent(rank, range(me, me + 1), block)[0]).sum()) for rank in others)

    def wait(self) -> None:
        """Wait for this GPU."""
        if not self.host:
            self.xp.cuda.Device().synchronize()

    def meet(self) -> None:
        """Wait for all GPUs."""
        self.wait()
        MPI.COMM_WORLD.Barrier()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=int, default=128 << 20, metavar="N", help="on each rank (default 128 M)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results")
    options = parser.parse_args()
    world, results = World(options.bytes), []
    ways, shapes = (3, SHAPES_ON_HOST) if world.host else (4, SHAPES)
    every = [Shape(way, *shape) for way, shape in itertools.product(range(ways), shapes)]
    for shape in every:
        if world.size == 1 or shape.streams(world.size - 1) == 0:
            # There are fewer warps than peers to send to and to receive from.
            continue
        results.append(world.measure(shape, options.bytes, 1 if world.host else 20))
        if world.rank == 0:
            print("  ".join(f"{name} {value}" for name, value in results[-1].items()), flush=True)
        if results[-1]["wrong"] or results[-1]["failed"]:
            raise SystemExit(1)
    if world.rank == 0:
        about = environment.of(world.comm) | {"memory": MEMORY}
        environment.write_json(options.json, about, {"results": results})


if __name__ == "__main__":
    main()
