"""Sample sort: rows of a key and a number are sorted over all ranks; only the GPUs compute how many go where.

    mpiexec -n 4 python examples/data/sample_sort.py
    mpiexec -n 4 python examples/data/sample_sort.py --file README.md --output sorted.txt

1. Every rank sorts its own part, and takes a regular sample of it;
2. all ranks sort all samples (`Allgather`) and find the same splitters, one less than there are ranks;
3. each finds where the splitters cut its part, and so how many rows every rank gets: on the device;
4. the rows travel by `Alltoallv` with these counts, which the host never reads;
5. every rank sorts what has arrived. Rank 0 then has the smallest rows, the last rank the largest.

Rows with equal keys are ordered by where they were, rank first. So no two rows are alike, and however often a key
appears, the splitters share the rows out fairly: no rank gets more than its share and 1/OVERSAMPLE of it (method and
bound: regular sampling, Shi and Schaeffer 1992).

It sorts numbers that it makes, uniform ones, skewed ones and others, or the lines of a file by their first 8 bytes;
lines that begin alike are put in order at the end. All is compared with the same sort in one process, or, if it is
too much for that, by checksums and by the order within ranks and across their borders.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where common/ is
import pyncclx
from common.program import array_module, read_options, stop, to_host

LARGEST = np.uint64(2**64 - 1)
COMPARED = 1 << 22  # rows that one process sorts for comparison
Array = Any  # of NumPy or CuPy, whichever `xp` is
DISTRIBUTIONS = {
    "uniform": lambda random, n: random.integers(0, 2**64, n, "u8"),
    "skewed": lambda random, n: random.zipf(1.3, n).astype("u8"),
    "equal": lambda _, n: np.full(n, 7, "u8"),
    "sorted": lambda _, n: np.arange(n, dtype="u8"),
    "backwards": lambda _, n: np.arange(n, 0, -1, dtype="u8"),
}


class Sorted(NamedTuple):
    """One rank's part of the result, on the device: the first `total` rows; no row after them counts."""

    rows: Array  # (capacity, 2) uint64: key, number
    total: Array  # (1,)
    dropped: Array  # (size,), of each rank; all 0, or there was not room enough


def main() -> int:
    """Sort and check what the command line asks for; 1 if something is wrong."""
    comm = pyncclx.Communicator(MPI.COMM_WORLD)
    options = read_options(comm, parse)
    xp = array_module(comm, "uint64")
    if options.file:
        lines = options.file.read_bytes().splitlines(keepends=True)
        inputs = {options.file.name: np.array([line[:8] for line in lines], "S8").view(">u8").astype("u8")}
    else:
        lines, count = [], options.rows * comm.size
        names = [options.distribution] if options.distribution else list(DISTRIBUTIONS)
        inputs = {name: DISTRIBUTIONS[name](np.random.default_rng(options.seed), count) for name in names}
    if comm.rank == 0:
        print(f"Sample sort: {len(next(iter(inputs.values())))} rows on {comm.size} ranks, {comm.device}")
    return max(sort_and_check(comm, xp, name, keys, lines, options) for name, keys in inputs.items())


def sort_and_check(comm: Any, xp: Any, name: str, keys: Array, lines: list[bytes], options: argparse.Namespace) -> int:
    """Sort one input, report; 1 if the result is wrong."""
    if len(keys) < comm.size:
        stop(comm, f"{name} has {len(keys)} rows for {comm.size} ranks; give each of them one at least")
    first = np.arange(comm.size + 1) * len(keys) // comm.size
    own = slice(first[comm.rank], first[comm.rank + 1])
    rows = np.stack([keys[own], np.arange(own.start, own.stop, dtype="u8")], axis=1)
    most = int(np.diff(first).max())
    capacity = int(most * (options.room or 1 + 1 / options.oversample)) + comm.size + 1
    seconds, result = timed(comm, xp.asarray(rows), capacity, options)

    total, dropped = int(result.total[0]), to_host(result.dropped)
    if comm.allreduce(int(dropped.sum())):
        lost = [total, int(dropped.sum())]
        worst = max((n, rank, kept) for rank, (kept, n) in enumerate(comm.allgather(lost)))
        stop(comm, f"{name}: rank {worst[1]} has room for {worst[2]} rows, {worst[0]} more came; give a larger --room")
    part = to_host(result.rows[:total])
    passed = comm.allreduce(bool(is_right(comm, keys, rows, part)), MPI.LAND)
    if lines:
        text = b"".join(lines[number] for number in solve_ties(comm, part, lines))
        passed = write(comm, text, lines, options.output) and passed
    busiest = comm.allreduce(total, MPI.MAX) / most
    if comm.rank == 0:
        rate = len(keys) / seconds / 1e6
        print(f"  {name:12}{rate:9.2f} M rows/s   busiest rank {busiest:5.3f} of its share", end="   ")
        print("PASSED" if passed else "FAILED", flush=True)
    return 0 if passed else 1


def timed(comm: Any, rows: Array, capacity: int, options: argparse.Namespace) -> tuple[float, Sorted]:
    """Seconds of the fastest of some sorts, and the result."""
    best = np.inf
    for _ in range(options.repeat + 1):  # kernels are compiled in the first
        comm.synchronize()
        comm.Barrier()
        begin = time.perf_counter()
        result = sample_sort(comm, rows, capacity, options.oversample)
        comm.synchronize()
        best = min(best, comm.allreduce(time.perf_counter() - begin, MPI.MAX))
    return best, result


def sample_sort(comm: Any, rows: Array, capacity: int, oversample: int) -> Sorted:
    """Sort the rows of all ranks by key and, where keys are equal, by rank and place. The host does not wait.

    Parameters
    ----------
    comm : pyncclx.Intracomm
    rows : array, shape (n, 2), uint64
        Key first. Each rank has at least one.
    capacity : int
        Rows that a rank has room for.
    oversample : int
        So many times the number of ranks is the length of a rank's sample.
    """
    xp = np if isinstance(rows, np.ndarray) else sys.modules["cupy"]
    size, samples = comm.size, oversample * comm.size
    rows = by_key(xp, rows)
    places = xp.arange(samples) * len(rows) // samples
    sample, every = xp.empty((samples, 3), "u8"), xp.empty((size * samples, 3), "u8")
    sample[:, 0], sample[:, 1], sample[:, 2] = rows[places, 0], comm.rank, places
    comm.Allgather(sample, every)
    splitters = by_key(xp, every)[samples::samples]

    keys, ranks, places = splitters[:, 0], splitters[:, 1].astype("i8"), splitters[:, 2].astype("i8")
    sorted_keys = xp.ascontiguousarray(rows[:, 0])
    before, after = (xp.searchsorted(sorted_keys, keys, side=side) for side in ("left", "right"))
    cuts = xp.where(ranks > comm.rank, after, xp.where(ranks < comm.rank, before, places))
    counts = xp.diff(xp.concatenate([xp.zeros(1, "i8"), cuts, xp.full(1, len(rows), "i8")]))

    arrived = xp.full((capacity, 2), LARGEST, "u8")  # what stays so is behind all rows after the sort, which is stable
    received, total, dropped = xp.empty(size, "i8"), xp.empty(1, "i8"), xp.empty(size, "i8")
    comm.Alltoallv([rows, counts], [arrived, received], layout="packed", total=total, status=dropped)
    return Sorted(by_key(xp, arrived), total, dropped)


def by_key(xp: Any, rows: Array) -> Array:
    """The rows in the order of their first column; equal ones stay in theirs."""
    return rows[xp.argsort(rows[:, 0], kind="stable")]


def is_right(comm: Any, keys: Array, rows: Array, part: Array) -> bool:
    """Whether this rank's part of the result is what it must be. Collective."""
    if len(keys) <= COMPARED:
        end = comm.scan(len(part))
        numbers = np.argsort(keys, kind="stable")[end - len(part) : end]
        same = np.array_equal(part[:, 1], numbers) and np.array_equal(part[:, 0], keys[numbers])
        return same and comm.allreduce(len(part)) == len(keys)
    edges = [part[0].tolist(), part[-1].tolist()] if len(part) else []
    borders = [row for pair in comm.allgather(edges) for row in pair]
    key, number = part[:, 0], part[:, 1]
    ordered = (key[:-1] < key[1:]) | ((key[:-1] == key[1:]) & (number[:-1] < number[1:]))
    sums = [[comm.allreduce(value) for value in checksum(some)] for some in (rows, part)]
    return bool(ordered.all()) and borders == sorted(borders) and sums[0] == sums[1]


def checksum(rows: Array) -> list[int]:
    """How many rows there are, and checksums that do not depend on their order."""
    mixed = (rows[:, 0] * np.uint64(0x9E3779B97F4A7C15)) ^ rows[:, 1]
    mixed = (mixed ^ (mixed >> np.uint64(31))) * np.uint64(0xBF58476D1CE4E5B9)
    return [len(rows), int((mixed >> np.uint64(20)).sum()), int((rows[:, 1] >> np.uint64(1)).sum())]


def solve_ties(comm: Any, part: Array, lines: list[bytes]) -> list[int]:
    """The numbers of this rank's lines, now by all of their bytes. Lines that begin alike may lie on several ranks."""
    runs = {int(run[0, 0]): run[:, 1].tolist() for run in np.split(part, np.flatnonzero(np.diff(part[:, 0])) + 1)}
    edges = {key: runs[key] for key in {*list(runs)[:1], *list(runs)[-1:]}} if len(part) else {}
    others = comm.allgather(edges)
    numbers = []
    for key, run in runs.items() if len(part) else ():
        shared = [each.get(key, []) for each in others] if key in edges else [run]
        begin = sum(map(len, shared[: comm.rank])) if key in edges else 0
        whole = sorted(itertools.chain(*shared), key=lambda number: lines[number])
        numbers += whole[begin : begin + len(run)]
    return numbers


def write(comm: Any, text: bytes, lines: list[bytes], output: Path | None) -> bool:
    """Write the sorted lines, if asked to. Returns whether they are what Python's sort makes of them. Collective."""
    whole = b"".join(comm.gather(text) or [])
    if comm.rank == 0 and output:
        output.write_bytes(whole)
    return bool(comm.bcast(whole == b"".join(sorted(lines))))


def parse() -> argparse.Namespace:
    """Parse and check the command line."""
    parser = argparse.ArgumentParser(
        prog="sample_sort.py",
        description="Sort numbers, or the lines of a file, over all ranks; check the result, time it.",
        epilog="Start it with mpiexec, one rank a GPU; PYNCCLX_DEVICE=host runs it without a GPU.",
    )
    parser.add_argument("--rows", type=int, default=100_000, metavar="N", help="of each rank (default: 100000)")
    parser.add_argument("--distribution", choices=list(DISTRIBUTIONS), help="of the numbers (default: each)")
    parser.add_argument("--file", type=Path, metavar="FILE", help="sort its lines")
    parser.add_argument("--output", type=Path, metavar="FILE", help="where to write the sorted lines")
    parser.add_argument("--oversample", type=int, default=8, metavar="N", help="samples per splitter (default: 8)")
    parser.add_argument("--room", type=float, metavar="X", help="for so many shares (default: enough)")
    parser.add_argument("--repeat", type=int, default=3, metavar="N", help="sorts to time (default: 3)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the numbers (default: 0)")
    options = parser.parse_args()
    for name in ("rows", "oversample", "repeat"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} is {getattr(options, name)}; it must be 1 or more")
    if options.room is not None and options.room <= 0:
        parser.error(f"--room is {options.room}; it must be positive")
    if options.file and not options.file.is_file():
        parser.error(f"--file: there is no file {options.file}")
    return options


if __name__ == "__main__":
    sys.exit(main())
