"""python -m pyncclx tune: time all algorithms, and write a table of the fastest.

The table is for this kind of device and this number of ranks; entries for other numbers of ranks are kept. A
communicator uses the table if its first operation on device arrays comes after the tuning. Tuning takes some seconds
on GPUs.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ...system.cache_folders import cache_directory
from ...tuning import ALGORITHMS, file_name, read
from .. import common
from . import environment, timing
from .cases import CASES, Options
from .memory import Memory, Ordinary, parse_nbytes, steps

IMPOSSIBLE = math.inf  # time of an algorithm that cannot move so many bytes
_WARMUP = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    parser.add_argument("-b", "--minbytes", default="1K", metavar="SIZE", help="smallest size (default 1K)")
    parser.add_argument("-e", "--maxbytes", default="128M", metavar="SIZE", help="largest size (default 128M)")
    parser.add_argument("-n", "--iters", type=int, default=20, help="operations timed together (default 20)")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="table, if not that of this user")


def run(arguments: argparse.Namespace) -> None:
    """Measure the limits, and write the table."""
    comm = environment.ranks_on_devices()
    if comm.spanning is not None:
        problem = "tune: it chooses among kernels inside one node, and the ranks are on several"
        raise SystemExit(problem if comm.rank == 0 else 1)
    about = environment.describe(comm, graph=comm.device != "host")
    about["program"] = f"python -m pyncclx tune -b {arguments.minbytes} -e {arguments.maxbytes} -n {arguments.iters}"
    sizes = list(steps(parse_nbytes(arguments.minbytes), parse_nbytes(arguments.maxbytes)))
    if not sizes:
        raise SystemExit("-b, -e: the largest size must not be less than the smallest")
    limits = measure(comm, sizes, arguments.iters)
    if comm.rank == 0:
        path = arguments.output or cache_directory() / file_name(about["device"])
        table = read(path)
        table["environment"][str(comm.size)] = about
        table["limits"][str(comm.size)] = limits
        common.write_json(path, table)
        print(f"# {path}")


def measure(comm: Any, sizes: Sequence[int], iters: int) -> dict[str, int]:
    """Time all algorithms; return the longest message for each (collective).

    The limits are in bytes, by kernel. Rank 0 prints the times.
    """
    memory = Ordinary(comm)
    limits: dict[str, int] = {}
    for operation, algorithms in ALGORITHMS.items():
        time_each = partial(time_algorithm, comm, operation, memory=memory, iters=iters)
        times = [[time_each(algorithm, nbytes) for algorithm in algorithms] for nbytes in sizes]
        chosen = best_cuts(times)
        say = partial(environment.say, comm)
        say(f"\n# {operation}, {comm.size} ranks; times in us, * is chosen")
        say(f"{'size':>10}" + "".join(f"{algorithm:>20}" for algorithm in algorithms))
        for nbytes, row, choice in zip(sizes, times, chosen, strict=True):
            say(f"{nbytes:>10}" + "".join(cell(time, chosen=i == choice) for i, time in enumerate(row)))
        kernels = [f"{operation}_{algorithm}" for algorithm in algorithms]
        limits |= dict(zip(kernels, limits_of(sizes, times, chosen), strict=False))
    return limits


def time_algorithm(comm: Any, operation: str, algorithm: str, nbytes: int, *, memory: Memory, iters: int) -> float:
    """Return the microseconds of one algorithm at one size (collective)."""
    case = CASES[operation](comm, nbytes, Options(algorithm=algorithm), memory)
    form, queue = case.forms[0], timing.queue_of(comm)
    case.fill(form)
    try:
        return timing.time(comm, queue, case.call(form), iters, _WARMUP, graph=comm.device != "host").slowest
    except ValueError:
        # All ranks raise this if the algorithm cannot move so many bytes.
        return IMPOSSIBLE


def best_cuts(times: Sequence[Sequence[float]]) -> list[int]:
    """Return an algorithm for each size, in the order of the table.

    A larger size never has an algorithm earlier in the table. The choice has the least sum of logarithms of times, so
    that one noisy size does not decide.
    """
    sizes, algorithms = len(times), len(times[0])
    choices = []
    for cuts in itertools.combinations_with_replacement(range(sizes + 1), algorithms - 1):
        choice = [sum(size >= cut for cut in cuts) for size in range(sizes)]
        choices.append((sum(math.log(row[i]) for row, i in zip(times, choice, strict=True)), choice))
    return min(choices)[1]


def limits_of(sizes: Sequence[int], times: Sequence[Sequence[float]], chosen: Sequence[int]) -> list[int]:
    """Return the longest message, in bytes, for each algorithm but the last.

    An algorithm's limit is the last size for which it or an earlier algorithm is chosen. If it cannot move the next
    size, its limit is one byte less than that size.
    """
    found: list[int] = []
    for number in range(len(times[0]) - 1):
        last = sum(choice <= number for choice in chosen) - 1
        impossible_next = last + 1 < len(sizes) and times[last + 1][number] == IMPOSSIBLE
        limit = sizes[last + 1] - 1 if impossible_next else sizes[last] if last >= 0 else 0
        # An algorithm that is never chosen has the limit of its predecessor.
        found.append(max([limit, *found]))
    return found


def cell(time: float, *, chosen: bool) -> str:
    """Return a time, formatted for its column."""
    text = "n/a " if time == IMPOSSIBLE else f"{time:.1f}{' *'[chosen]}"
    return f"{text:>20}"
