"""python -m pyncclx doctor: try what programs use, on the ranks of this job.

    mpiexec -n 4 python -m pyncclx doctor

Results are compared with NumPy's. It takes some seconds, or more if kernels must be compiled. Rank 0 prints a line for
each trial, with what went wrong on which rank. The exit status is 1 if a trial failed. If a trial does not end, the job
is ended.
"""

from __future__ import annotations

import argparse
import faulthandler
import functools
import sys
import time
from collections.abc import Callable

from mpi4py import MPI

from ...errors import NotSupported
from . import checks
from .trials import TRIALS, Job


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "--seconds", type=float, default=120.0, metavar="S", help="end the job when a trial takes longer (default 120)"
    )


def run(arguments: argparse.Namespace) -> None:
    """Run the trials, in order, until one fails."""
    world = MPI.COMM_WORLD
    problems = world.bcast([each.text for each in checks.findings() if each.is_problem])
    if problems:
        _print(world, "\n".join(f"!! {text}" for text in problems))
        sys.exit(1)
    job = Job()
    for name, trial in TRIALS.items():
        if not _succeeds(world, name, functools.partial(_text_of, trial, job), arguments.seconds):
            sys.exit(1)
    _print(world, f"All works, on {world.size} rank(s).")


def _text_of(trial: Callable[[Job], str], job: Job) -> str:
    """Run a trial; return its sentence, or why it is skipped over several nodes."""
    try:
        return trial(job)
    except NotSupported as refusal:
        # All ranks raise it alike.
        if job.node_count == 1:
            raise
        return f"skipped: {refusal}"


def _succeeds(world: MPI.Intracomm, name: str, trial: Callable[[], str], seconds: float) -> bool:
    """Run one trial on all ranks, and print the result.

    A rank that hangs shows its stack, and ends the job.
    """
    faulthandler.dump_traceback_later(seconds, exit=True)
    began = time.perf_counter()
    try:
        text, error = trial(), ""
    except Exception as exception:
        text, error = "", f"{type(exception).__name__}: {exception}"
    faulthandler.cancel_dump_traceback_later()
    errors = world.allgather(error)
    took = time.perf_counter() - began
    _print(world, f"{'FAILED' if any(errors) else 'ok':7}{name:28}{took:7.2f} s  {text}")
    for rank, each in enumerate(errors):
        if each:
            _print(world, f"       rank {rank}: {each}")
    return not any(errors)


def _print(world: MPI.Intracomm, text: str) -> None:
    if world.rank == 0:
        print(text, flush=True)
