"""Repeated work and its time: one CUDA graph if possible, otherwise eager calls."""

from __future__ import annotations

import contextlib
import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

import pyncclx

Work = Callable[[], object]


class Eager:
    """Work that the host enqueues each time.

    Parameters
    ----------
    comm : pyncclx.Intracomm
    work : callable
    kept : list
        The work appends to it what a graph must keep; it is cleared before each run.
    """

    how = "eager"

    def __init__(self, comm: Any, work: Work, kept: list[Any]) -> None:
        self._comm, self._work, self._kept = comm, work, kept

    def run(self) -> None:
        """Do the work once, and wait for it."""
        self._kept.clear()
        self._work()
        self._comm.synchronize()

    def seconds(self, repeat: int) -> float:
        """Return the median seconds of `repeat` runs, on the slowest rank. Collective."""
        self.run()
        marks = []
        for _ in range(repeat):
            MPI.Comm.Barrier(self._comm)
            begin = time.perf_counter()
            self.run()
            marks.append(time.perf_counter() - begin)
        return slowest(self._comm, statistics.median(marks))


class Graph:
    """Work that is captured once; a replay uses the present contents of its arrays.

    Parameters
    ----------
    comm, work, kept
        See `Eager`.
    cupy : module
    """

    how = "graph"

    def __init__(self, comm: Any, work: Work, kept: list[Any], cupy: Any) -> None:
        self._comm, self._cuda, self._stream = comm, cupy.cuda, cupy.cuda.Stream(non_blocking=True)
        # The graph has its own pool: no other array may get memory that a replay overwrites.
        self._pool = cupy.cuda.MemoryPool()
        cupy.cuda.Device().synchronize()
        with cupy.cuda.using_allocator(self._pool.malloc), self._stream:
            work()  # the first call of each kind prepares it, which cannot be captured
            self._stream.synchronize()
            kept.clear()
            self._graph = self._capture(work)
        self._kept = [*kept]

    def _capture(self, work: Work) -> Any:
        self._stream.begin_capture()
        try:
            work()
        except BaseException:
            # An exception during the capture is raised; that of ending the capture is not.
            with contextlib.suppress(Exception):
                self._stream.end_capture()
            raise
        return self._stream.end_capture()

    def run(self) -> None:
        """Replay the graph once, and wait for it."""
        self._cuda.Device().synchronize()  # other streams may have written its input
        self._graph.launch(self._stream)
        self._stream.synchronize()

    def seconds(self, repeat: int) -> float:
        """Return the median seconds of `repeat` replays, on the slowest rank. Collective."""
        self.run()
        MPI.Comm.Barrier(self._comm)
        marks = [self._stream.record(self._cuda.Event())]
        for _ in range(repeat):
            self._graph.launch(self._stream)
            marks.append(self._stream.record(self._cuda.Event()))
        self._stream.synchronize()
        between = self._cuda.get_elapsed_time
        return slowest(self._comm, statistics.median(between(*pair) for pair in itertools.pairwise(marks)) / 1e3)


def prepare(xp: Any, exchange: Any, work: Work) -> Eager | Graph:
    """Return repeatable work: a graph if device and exchange allow it. Collective."""
    if xp is not np and exchange.is_capturable:
        with contextlib.suppress(pyncclx.NotSupported):  # over nodes a token shuffle may need the host
            return Graph(exchange.comm, work, exchange.kept, xp)
    return Eager(exchange.comm, work, exchange.kept)


def slowest(comm: Any, seconds: float) -> float:
    """Return the largest of the ranks' seconds. Collective."""
    return float(max(MPI.Comm.allgather(comm, seconds)))
