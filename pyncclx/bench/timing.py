"""Time per operation, eager or in a replayed CUDA graph, on every rank."""

from __future__ import annotations

import time as clock
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from mpi4py import MPI

REPLAYS = 10

Work = Callable[[], Any]


class Times(NamedTuple):
    """Microseconds of one operation on the fastest rank, on average, and on the slowest, which counts."""

    least: float
    average: float
    most: float


class Queue(Protocol):
    """Where calls are enqueued: inside ``with`` it is the current stream."""

    def __enter__(self) -> Any: ...

    def __exit__(self, *exception: object) -> None: ...

    def synchronize(self) -> None:
        """Wait on the host for what was enqueued."""

    def elapsed(self, work: Work) -> float:
        """Seconds that work takes, from first to last."""

    def capture(self, work: Work) -> Work:
        """A graph of work, as the call that replays it."""


class HostQueue:
    """For calls that return when they are over."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exception: object) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def elapsed(self, work: Work) -> float:
        begin = clock.perf_counter()
        work()
        return clock.perf_counter() - begin

    def capture(self, work: Work) -> Work:
        raise NotImplementedError("what runs on the host cannot be captured in a CUDA graph")


class CupyQueue:
    """A stream of CuPy's."""

    def __init__(self) -> None:
        import cupy  # noqa: PLC0415  only where there is a GPU

        self._event: Any = cupy.cuda.Event
        self._milliseconds: Any = cupy.cuda.get_elapsed_time
        self.stream: Any = cupy.cuda.Stream(non_blocking=True)

    def __enter__(self) -> Any:
        return self.stream.__enter__()

    def __exit__(self, *exception: object) -> None:
        self.stream.__exit__(*exception)

    def synchronize(self) -> None:
        self.stream.synchronize()

    def elapsed(self, work: Work) -> float:
        begin = self.mark()
        work()
        return self.between(begin, self.mark())

    def mark(self) -> Any:
        """An event at the present end of the stream."""
        event = self._event()
        event.record(self.stream)
        return event

    def between(self, begin: Any, end: Any) -> float:
        """Seconds from one event to another, which is waited for."""
        end.synchronize()
        return float(self._milliseconds(begin, end)) / 1e3

    def capture(self, work: Work) -> Work:
        self.stream.begin_capture()
        work()
        graph = self.stream.end_capture()
        return lambda: graph.launch(self.stream)


def queue_of(comm: Any) -> Queue:
    """A queue for the operations of a communicator."""
    return HostQueue() if comm.device == "host" else CupyQueue()


def time(comm: Any, queue: Queue, call: Work, iters: int, warmup: int, *, graph: bool) -> Times:
    """Time one call of many. Collective."""
    comm.team.device.synchronize()  # the arguments are there
    with queue:
        repeat(call, max(warmup, 1))  # preparation cannot be captured
        queue.synchronize()
        repeats = REPLAYS if graph else 1
        work = queue.capture(lambda: repeat(call, iters)) if graph else lambda: repeat(call, iters)
        work()  # so that everything has been done once
        queue.synchronize()
        MPI.Comm.Barrier(comm)
        seconds = queue.elapsed(lambda: repeat(work, repeats))
    each = [1e6 * rank / (iters * repeats) for rank in MPI.Comm.allgather(comm, seconds)]
    return Times(min(each), sum(each) / len(each), max(each))


def repeat(call: Work, times: int) -> None:
    """Call something some times."""
    for _ in range(times):
        call()
