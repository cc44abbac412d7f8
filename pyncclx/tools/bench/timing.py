"""Measure the time of one operation on every rank, eager or in a CUDA graph."""

from __future__ import annotations

import time as clock
from collections.abc import Callable
from typing import Any, NamedTuple

from mpi4py import MPI

from ... import backends

REPLAYS = 10

Work = Callable[[], Any]


class Times(NamedTuple):
    """Microseconds of one operation: fastest rank, average of ranks, slowest rank.

    Results report the slowest rank.
    """

    fastest: float
    average: float
    slowest: float


class Queue:
    """Times calls that return when they are complete.

    `CupyQueue` times calls that enqueue work on a stream. Inside ``with``, the queue's stream is the current one.
    """

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def synchronize(self) -> None:
        """Wait on the host for all enqueued work."""

    def mark(self) -> Any:
        """Return a mark at the end of the queue, to pass to `between`."""
        return clock.perf_counter()

    def between(self, begin: Any, end: Any) -> float:
        """Wait until the queue reaches the mark `end`; return the seconds since `begin`."""
        return float(end - begin)

    def elapsed(self, work: Work) -> float:
        """Return the seconds that `work` takes on the queue."""
        begin = self.mark()
        work()
        return self.between(begin, self.mark())

    def capture(self, work: Work) -> Work:
        """Capture `work` in a graph; return a function that replays it."""
        raise NotImplementedError("calls that run on the host cannot be captured in a CUDA graph")


class CupyQueue(Queue):
    """Times calls on a CuPy stream."""

    def __init__(self) -> None:
        import cupy  # noqa: PLC0415  only where there is a GPU

        self._cuda: Any = cupy.cuda
        self.stream: Any = cupy.cuda.Stream(non_blocking=True)

    def __enter__(self) -> Any:
        return self.stream.__enter__()

    def __exit__(self, *exception: object) -> None:
        self.stream.__exit__(*exception)

    def synchronize(self) -> None:
        self.stream.synchronize()

    def mark(self) -> Any:
        event = self._cuda.Event()
        event.record(self.stream)
        return event

    def between(self, begin: Any, end: Any) -> float:
        end.synchronize()
        return float(self._cuda.get_elapsed_time(begin, end)) / 1e3

    def capture(self, work: Work) -> Work:
        self.stream.begin_capture()
        work()
        graph = self.stream.end_capture()
        return lambda: graph.launch(self.stream)


def queue_of(comm: Any) -> Queue:
    """Return a queue to time the operations of a communicator."""
    return Queue() if comm.device == "host" else CupyQueue()


def time(comm: Any, queue: Queue, call: Work, iters: int, warmup: int, *, graph: bool) -> Times:
    """Time a call, as the average of `iters` calls after `warmup` calls (collective)."""
    # Work that produces the arguments must have ended.
    backends.select().synchronize()
    with queue:
        # Preparation cannot be captured.
        repeat(call, max(warmup, 1))
        queue.synchronize()
        repeats = REPLAYS if graph else 1
        work = queue.capture(lambda: repeat(call, iters)) if graph else lambda: repeat(call, iters)
        # The first run is not timed, because it includes one-time work.
        work()
        queue.synchronize()
        MPI.Comm.Barrier(comm)
        seconds = queue.elapsed(lambda: repeat(work, repeats))
    each = [1e6 * rank / (iters * repeats) for rank in MPI.Comm.allgather(comm, seconds)]
    return Times(min(each), sum(each) / len(each), max(each))


def repeat(call: Work, times: int) -> None:
    """Call a function several times."""
    for _ in range(times):
        call()
