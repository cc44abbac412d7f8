"""Time per operation, eager or in a replayed CUDA graph; the slowest rank's counts."""

from __future__ import annotations

import time as clock
from collections.abc import Callable
from typing import Any

from mpi4py import MPI

REPLAYS = 10


def time(comm: Any, operation: Callable[[], None], iters: int, warmup: int, *, graph: bool) -> float:
    """Microseconds of one `operation`; its communicator must be ready to run it."""
    if comm.device == "host":
        return _on_host(comm, operation, iters, warmup)
    import cupy  # noqa: PLC0415  only where there is a GPU

    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        for _ in range(warmup):
            operation()
        stream.synchronize()
        if not graph:
            return slowest(comm, stream, lambda: repeat(operation, iters), 1) / iters
        stream.begin_capture()
        repeat(operation, iters)
        captured = stream.end_capture()
        return slowest(comm, stream, lambda: captured.launch(stream), REPLAYS) / (iters * REPLAYS)


def repeat(operation: Callable[[], None], times: int) -> None:
    """Call `operation` some times."""
    for _ in range(times):
        operation()


def slowest(comm: Any, stream: Any, work: Callable[[], None], times: int) -> float:
    """Microseconds that `work`, enqueued some times on `stream`, takes on the slowest rank; one turn warms up."""
    import cupy  # noqa: PLC0415

    work()
    stream.synchronize()
    MPI.Comm.Barrier(comm)
    begin, end = cupy.cuda.Event(), cupy.cuda.Event()
    begin.record(stream)
    repeat(work, times)
    end.record(stream)
    end.synchronize()
    return float(comm.allreduce(cupy.cuda.get_elapsed_time(begin, end), MPI.MAX)) * 1e3


def _on_host(comm: Any, operation: Callable[[], None], iters: int, warmup: int) -> float:
    repeat(operation, warmup)
    MPI.Comm.Barrier(comm)
    begin = clock.perf_counter()
    repeat(operation, iters)
    return float(comm.allreduce(clock.perf_counter() - begin, MPI.MAX)) * 1e6 / iters
