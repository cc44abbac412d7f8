"""python -m pyncclx doctor: try all kinds of calls on the ranks of this job.

    mpiexec -n 4 python -m pyncclx doctor

Results are compared with NumPy's. The command takes some seconds, or more if kernels must be compiled. Rank 0 prints a
line for each trial, with what went wrong on which rank. The exit status is 1 if a trial failed. If a trial hangs, the
command ends the job.
"""

from __future__ import annotations

import argparse
import faulthandler
import functools
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

from ... import backends
from ...communicator.public import Communicator
from ...errors import NotSupported
from ...windows.win import Win
from ..bench.cases import CASES, Options
from ..bench.environment import say
from ..bench.memory import Ordinary, array_module
from . import checks

# Numbers of elements, one for each kind of transport.
_COUNTS = (1, 1000, 1 << 18)
_REPEATS = 100


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
        say(world, *(f"!! {text}" for text in problems))
        sys.exit(1)
    job = Job()
    if not all(_succeeds(world, job, name, arguments.seconds) for name in TRIALS):
        sys.exit(1)
    say(world, f"All works, on {world.size} rank(s).")


def _succeeds(world: MPI.Intracomm, job: Job, name: str, seconds: float) -> bool:
    """Run one trial on all ranks, and print the result.

    A rank that hangs shows its stack, and ends the job.
    """
    faulthandler.dump_traceback_later(seconds, exit=True)
    began, error = time.perf_counter(), ""
    try:
        text = TRIALS[name](job)
    except Exception as exception:
        # Over several nodes, all ranks raise NotSupported for operations that are not supported there.
        skipped = isinstance(exception, NotSupported) and job.node_count > 1
        text = f"skipped: {exception}" if skipped else ""
        error = "" if skipped else f"{type(exception).__name__}: {exception}"
    faulthandler.cancel_dump_traceback_later()
    errors = world.allgather(error)
    took = time.perf_counter() - began
    say(world, f"{'FAILED' if any(errors) else 'ok':7}{name:28}{took:7.2f} s  {text}")
    say(world, *(f"       rank {rank}: {each}" for rank, each in enumerate(errors) if each))
    return not any(errors)


# ---- the trials: each makes calls, and returns a sentence or raises an error -----------------------------------------


class Job:
    """Communicator, and the library of its arrays: CuPy, or NumPy on the host device."""

    comm: Any
    xp: Any

    def begin(self) -> str:
        """Choose this rank's device, and allocate the communicator's memory."""
        self.comm = Communicator(MPI.COMM_WORLD)
        self.comm.select_device()
        self.xp = array_module(self.comm)
        self.comm.Barrier(device=True)
        places = MPI.COMM_WORLD.allgather(backends.select().name)
        nodes = self.node_count
        where = f", on {nodes} nodes" if nodes > 1 else ""
        return "; ".join(f"{places.count(each)} x {each}" for each in dict.fromkeys(places)) + where

    @property
    def node_count(self) -> int:
        """Number of nodes."""
        return int(self.comm.node_topology.node_count)

    def array(self, values: np.ndarray) -> Any:
        """Return a device array of values."""
        return self.xp.asarray(values)

    def empty(self, count: int) -> Any:
        """Return a device array in which every element is wrong."""
        return self.xp.full(count, -1, "i4")

    def compare(self, what: str, array: Any, expected: np.ndarray) -> None:
        """Raise AssertionError with the first wrong element, if there is any."""
        self.comm.synchronize()
        values = array if isinstance(array, np.ndarray) else array.get()
        wrong = np.flatnonzero(values.ravel() != expected.ravel())
        if wrong.size:
            first = wrong[0]
            text = f"element {first} is {values.ravel()[first]}, not {expected.ravel()[first]}"
            raise AssertionError(f"{what}: {wrong.size} of {values.size} elements are wrong: {text}")


def _labels(rank: int, count: int) -> np.ndarray:
    """Return elements that differ by rank and place."""
    return np.arange(count, dtype="i4") * 64 + rank


def _compare(job: Job, operation: str, counts: tuple[int, ...] = _COUNTS) -> str:
    """Run an operation of the benchmark for each number of elements of a block."""
    kind, options = CASES[operation], Options("int32", root=job.comm.size - 1)
    for count in counts:
        case = kind(job.comm, 4 * count * (job.comm.size if kind.blocks else 1), options, Ordinary(job.comm))
        form = case.forms[0]
        case.fill(form)
        case.call(form)()
        # NumPy computes the expected elements.
        case.xp = np
        job.compare(f"{case.method} of {count}", case.target(form), case.expected())
    return ""


def _allreduce(job: Job) -> str:
    _compare(job, "allreduce")
    x, y = job.array(_labels(job.comm.rank, 1)), job.empty(1)
    job.comm.synchronize()
    MPI.COMM_WORLD.Barrier()
    began = time.perf_counter()
    for _ in range(_REPEATS):
        job.comm.Allreduce(x, y)
    job.comm.synchronize()
    return f"{(time.perf_counter() - began) / _REPEATS * 1e6:.1f} µs a call of 4 bytes, one after the other"


def _window(job: Job) -> str:
    comm = job.comm
    memory = comm.Alloc(1000, "i4")
    win = Win.Create(memory, 4, comm=comm)
    try:
        win.Fence()
        win.Put(job.array(_labels(comm.rank, 1000)), (comm.rank + 1) % comm.size)
        win.Fence()
        job.compare("Put of 1000", memory, _labels((comm.rank - 1) % comm.size, 1000))
    finally:
        win.Free()
    return ""


def _nonblocking(job: Job) -> str:
    """Run collectives of two communicators, in the opposite order on every other rank."""
    comms = [job.comm.Dup() for _ in range(2)]
    results = [job.empty(100) for _ in comms]
    order = (0, 1) if job.comm.rank % 2 == 0 else (1, 0)
    x = job.array(_labels(job.comm.rank, 100))
    for comm in comms:
        # The call prepares the kernel, on all ranks in one order.
        comm.Allreduce(x, job.empty(100))
    requests = [comms[place].Iallreduce(x, results[place]) for place in order]
    for request in requests:
        request.Wait()
    for comm, result in zip(comms, results, strict=True):
        comm.synchronize()
        job.compare("Iallreduce", result, np.sum([_labels(rank, 100) for rank in range(comm.size)], axis=0))
        comm.Free()
    return ""


def _shuffle(job: Job) -> str:
    comm = job.comm
    experts, hidden = 2 * comm.size, 64
    tokens = _labels(comm.rank, 8 * hidden).astype("f4").reshape(8, hidden)
    ids = np.arange(8).reshape(8, 1) % experts
    with comm.Create_token_shuffle(experts, 8 * comm.size, hidden, "float32", k=1, max_tokens=8) as shuffle:
        rows, handle = shuffle.dispatch(job.array(tokens), job.array(ids))
        result = shuffle.combine(rows.data, handle)
        job.compare("dispatch and combine", result, tokens)
    return ""


TRIALS: dict[str, Callable[[Job], str]] = {
    "device and communicator": Job.begin,
    "Allreduce": _allreduce,
    "Allgather": functools.partial(_compare, operation="allgather"),
    "Alltoall": functools.partial(_compare, operation="alltoall", counts=_COUNTS[:2]),
    "Bcast": functools.partial(_compare, operation="bcast"),
    "messages": functools.partial(_compare, operation="sendrecv"),
    "one-sided": _window,
    "nonblocking": _nonblocking,
    "token shuffle": _shuffle,
}
