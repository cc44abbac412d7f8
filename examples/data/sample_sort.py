"""Sample sort: sort rows over all ranks, with counts that only the GPUs read.

    mpiexec -n 4 python examples/data/sample_sort.py
    mpiexec -n 4 python examples/data/sample_sort.py --file README.md --output sorted.txt

A row is a key and a number.

1. Every rank sorts its own rows, and takes a regular sample of them.
2. All ranks sort all samples (`Allgather`) and find the same splitters, one fewer than there are ranks.
3. Each rank finds where the splitters divide its rows, and so how many rows go to each rank, on the device.
4. `Alltoallv` with these counts, which the host never reads, moves the rows.
5. Every rank sorts the rows that it has received. Rank 0 then has the smallest rows, the last rank the largest.

Rows with equal keys are ordered by their origin: rank first, then place. So no two rows are equal, and the splitters
divide the rows evenly even if a key appears often: no rank gets more than 1 + 1/OVERSAMPLE of its share (method and
bound: regular sampling, Shi and Schaeffer 1992).

The program sorts numbers that it makes (uniform, skewed and others), or the lines of a file by their first 8 bytes;
lines with equal beginnings are sorted at the end. The result is compared with that of one process. If it is too large
for one process, checksums are compared, and the order within each rank and between neighbouring ranks.
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
Array = Any  # NumPy's or CuPy's, like `xp`
DISTRIBUTIONS = {
    "uniform": lambda random, n: random.integers(0, 2**64, n, "u8"),
    "skewed": lambda random, n: random.zipf(1.3, n).astype("u8"),
    "equal": lambda _, n: np.full(n, 7, "u8"),
    "sorted": lambda _, n: np.arange(n, dtype="u8"),
    "backwards": lambda _, n: np.arange(n, 0, -1, dtype="u8"),
}


class Sorted(NamedTuple):
    """One rank's part of the result on the device: the first `total` rows are valid."""

    rows: Array  # shape (capacity, 2), uint64: key, number
    total: Array  # shape (1,)
    dropped: Array  # shape (size,): rows from each rank that did not fit


def main() -> int:
    """Sort and check the inputs of the command line; return 1 if a result is wrong."""
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
    """Sort one input, and report; return 1 if the result is wrong."""
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
    """Return the seconds of the fastest of several sorts, and the result."""
    best = np.inf
    # The first sort compiles the kernels.
    for _ in range(options.repeat + 1):
        comm.synchronize()
        comm.Barrier()
        begin = time.perf_counter()
        result = sample_sort(comm, rows, capacity, options.oversample)
        comm.synchronize()
        best = min(best, comm.allreduce(time.perf_counter() - begin, MPI.MAX))
    return best, result


def sample_sort(comm: Any, rows: Array, capacity: int, oversample: int) -> Sorted:
    """Sort the rows of all ranks by key, then rank and place. The host does not wait.

    Parameters
    ----------
    comm : pyncclx.Intracomm
    rows : array, shape (n, 2), uint64
        Key first. Each rank has at least one.
    capacity : int
        Number of rows that fit on a rank.
    oversample : int
        A rank's sample has this many rows for each rank.
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

    # The sort is stable, so unused rows stay after all received rows.
    arrived = xp.full((capacity, 2), LARGEST, "u8")
    received, total, dropped = xp.empty(size, "i8"), xp.empty(1, "i8"), xp.empty(size, "i8")
    comm.Alltoallv([rows, counts], [arrived, received], layout="packed", total=total, status=dropped)
    return Sorted(by_key(xp, arrived), total, dropped)


def by_key(xp: Any, rows: Array) -> Array:
    """Return the rows sorted by their first column (stable)."""
    return rows[xp.argsort(rows[:, 0], kind="stable")]


def is_right(comm: Any, keys: Array, rows: Array, part: Array) -> bool:
    """Return whether this rank's part of the result is correct. Collective."""
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
    """Return the number of rows, and checksums that do not depend on their order."""
    mixed = (rows[:, 0] * np.uint64(0x9E3779B97F4A7C15)) ^ rows[:, 1]
    mixed = (mixed ^ (mixed >> np.uint64(31))) * np.uint64(0xBF58476D1CE4E5B9)
    return [len(rows), int((mixed >> np.uint64(20)).sum()), int((rows[:, 1] >> np.uint64(1)).sum())]


def solve_ties(comm: Any, part: Array, lines: list[bytes]) -> list[int]:
    """Return the numbers of this rank's lines, sorted by all of their bytes.

    Lines that begin with the same bytes may be on several ranks.
    """
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
    """Write the sorted lines, if asked to; return whether they are right. Collective."""
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
