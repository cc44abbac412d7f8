"""python -m pyncclx tune: time every algorithm of the operations that have several, and write down which to choose.

The table is for this kind of device and this number of ranks; other numbers of ranks in it stay. Communicators that
make their first operation on device arrays afterwards find it. On 2, 3 and 8 H200 it took 5, 6 and 15 seconds.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mpi4py import MPI

from ..communicator.communicator import Communicator
from ..system.paths import cache_directory
from ..tuning import LADDERS, file_name, read
from . import environment, timing
from .cases import CASES, Options
from .memory import Memory, Ordinary
from .progress import Progress
from .sweep import parse_size

IMPOSSIBLE = math.inf  # the time of what an algorithm cannot move


def add_command(commands: Any) -> None:
    """Add `tune` to the subcommands of an argument parser."""
    parser = commands.add_parser("tune", help="measure which algorithm is best for which length", description=__doc__)
    parser.add_argument("-b", "--minbytes", default="1K", metavar="SIZE", help="smallest size (default 1K)")
    parser.add_argument("-e", "--maxbytes", default="128M", metavar="SIZE", help="largest size (default 128M)")
    parser.add_argument("-n", "--iters", type=int, default=20, help="operations timed together (default 20)")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="table, if not that of this user")
    parser.set_defaults(run=run, buffers="ordinary")


def run(arguments: argparse.Namespace) -> None:
    """Measure, and write the table."""
    comm = Communicator(MPI.COMM_WORLD)
    comm.select_device()
    arguments.graph = comm.device != "host"
    about = environment.describe(comm, arguments, {})
    first, last = parse_size(arguments.minbytes), parse_size(arguments.maxbytes)
    sizes = list(itertools.takewhile(lambda nbytes: nbytes <= last, (first << i for i in itertools.count())))
    if not sizes:
        raise SystemExit("-b, -e: the largest size must not be less than the smallest")
    limits = measure(comm, sizes, arguments)
    if comm.rank == 0:
        path = arguments.output or cache_directory() / file_name(about["device"])
        table = read(path)
        table["environment"][str(comm.size)] = about
        table["limits"][str(comm.size)] = limits
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(table, indent=1) + "\n")
        print(f"# {path}")


def measure(comm: Any, sizes: Sequence[int], arguments: argparse.Namespace) -> dict[str, int]:
    """The limits of all ladders; rank 0 prints the times. Collective."""
    memory = Ordinary(comm)
    limits: dict[str, int] = {}
    with Progress(len(LADDERS) * len(sizes), comm.rank) as progress:
        for operation, rungs in LADDERS.items():
            progress.print(f"\n# {operation}, {comm.size} ranks; times in us, * is chosen")
            progress.print(f"{'size':>10}" + "".join(f"{rung:>20}" for rung in rungs))
            times = []
            for nbytes in sizes:
                times.append(time_all(comm, operation, rungs, nbytes, memory, arguments))
                progress.advance()
            chosen = best_cuts(times)
            for nbytes, row, choice in zip(sizes, times, chosen, strict=True):
                progress.print(f"{nbytes:>10}" + "".join(in_words(time, i == choice) for i, time in enumerate(row)))
            kernels = [f"{operation}_{rung}" for rung in rungs]
            limits |= dict(zip(kernels, limits_of(sizes, times, chosen), strict=False))
    return limits


def time_all(
    comm: Any, operation: str, rungs: Sequence[str], nbytes: int, memory: Memory, arguments: argparse.Namespace
) -> list[float]:
    """Microseconds of each algorithm at one size. Collective."""
    times = []
    for rung in rungs:
        case = CASES[operation](comm, nbytes, Options(algorithm=rung), memory)
        form, queue = case.forms[0], timing.queue_of(comm)
        case.fill(form)
        try:
            times.append(timing.time(comm, queue, case.call(form), arguments.iters, 3, graph=arguments.graph).most)
        except ValueError:  # on all ranks: it cannot move so much
            times.append(IMPOSSIBLE)
    return times


def best_cuts(times: Sequence[Sequence[float]]) -> list[int]:
    """Which algorithm to choose at each size, if a later one is never followed by an earlier one.

    Of all such choices that with the least sum of logarithms: a noisy size does not turn it over.
    """
    sizes, rungs = len(times), len(times[0])
    choices = []
    for cuts in itertools.combinations_with_replacement(range(sizes + 1), rungs - 1):
        choice = [sum(size >= cut for cut in cuts) for size in range(sizes)]
        choices.append((sum(math.log(row[i]) for row, i in zip(times, choice, strict=True)), choice))
    return min(choices)[1]


def limits_of(sizes: Sequence[int], times: Sequence[Sequence[float]], chosen: Sequence[int]) -> list[int]:
    """The longest message for each algorithm but the last, in bytes.

    It is the last size at which it or an earlier one is chosen; or all that it can move, if it cannot move the next.
    """
    found: list[int] = []
    for rung in range(len(times[0]) - 1):
        last = sum(choice <= rung for choice in chosen) - 1
        impossible_next = last + 1 < len(sizes) and times[last + 1][rung] == IMPOSSIBLE
        limit = sizes[last + 1] - 1 if impossible_next else sizes[last] if last >= 0 else 0
        found.append(max([limit, *found]))  # of a rung that is never chosen it is that of the one below
    return found


def in_words(time: float, chosen: bool) -> str:
    """A time, in a column."""
    text = "n/a " if time == IMPOSSIBLE else f"{time:.1f}{' *'[chosen]}"
    return f"{text:>20}"
