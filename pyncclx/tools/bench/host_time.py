"""Measure the time that the host takes for one call of 1 KB."""

from __future__ import annotations

import argparse
import ctypes
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from ... import backends
from ...errors import NotSupported
from ...requests.persistent import Prequest
from ...requests.request import Request
from . import environment, report, sweep
from .cases import CASES, Case
from .memory import memory_of
from .peers import Peer
from .timing import CupyQueue, Queue, queue_of, repeat

NBYTES = 1024
CALLS = 10_000
TOGETHER = 8  # persistent requests in one Startall
# Calls between two waits for the device, few enough that no call waits for the device's queue.
BATCH = 100


def default_peers(comm: Any) -> str | None:
    """Return the default library to compare with, or None.

    It is PyTorch, if installed and if all ranks have GPUs of one node.
    """
    return "torch" if comm.device == "gpu" and find_spec("torch") and comm.spanning is None else None


def run(comm: Any, arguments: argparse.Namespace, peers: dict[str, Peer], about: environment.Row) -> None:
    """Measure and print the host time of each operation's calls. Collective.

    It times pyncclx's blocking and nonblocking calls, the Start of persistent ones, and the calls of `peers`. Rank 0
    prints the table and writes the results.
    """
    arguments.operation = arguments.operation or ["allreduce"]
    title = f"# host time of one call of {NBYTES} bytes, {CALLS} calls, {environment.ranks(about)}"
    columns = f"# {'call':<38}{'median (us)':>14}{'p99 (us)':>12}"
    environment.say(comm, title, *report.notes(about, peers), columns)
    options = sweep.options_of(comm, arguments)
    memory = memory_of(comm, arguments.buffers, NBYTES * 2)
    cases = (CASES[operation](comm, NBYTES, options, memory) for operation in arguments.operation)
    results = []
    for timed in chain(driver_alone(comm), (timed for case in cases for timed in calls(case, peers))):
        results.append({"call": timed.name} | measure(comm, timed))
        environment.say(comm, "  {call:<38}{median_us:>14.2f}{p99_us:>12.2f}".format_map(results[-1]))
    if comm.rank == 0:
        environment.write_json(arguments.json, about, {"host_time": results})


class Timed(NamedTuple):
    """A call to time, with its name in the table.

    One call may start several operations (`operations`). The time is then divided by their number.
    """

    name: str
    call: Callable[[], Any]
    queue: Queue
    finish: Callable[[], Any] = lambda: None  # completes the call, untimed
    operations: int = 1


def driver_alone(comm: Any) -> Iterator[Timed]:
    """Yield launches of an empty kernel by the driver: a lower bound for any call."""
    if comm.device != "gpu":
        return
    import cupy  # noqa: PLC0415  only where there is a GPU

    device, queue = backends.select(), CupyQueue()
    kernel = cupy.RawKernel('extern "C" __global__ void nothing() {}', "nothing").kernel
    function, event = ctypes.c_void_p(kernel.ptr), device.event()
    once = partial(device.launch, function, 1, 32, b"", queue.stream)
    yield Timed("driver: cuLaunchKernelEx", once, queue)
    again = partial(device.repeated(function, 1, 32, b"", event).launch, queue.stream)
    yield Timed("driver: cuGraphLaunch, kernel and event", again, queue)


def calls(case: Case, peers: dict[str, Peer]) -> Iterator[Timed]:
    """Yield one operation's calls to time: first pyncclx's, then those of `peers`."""
    in_place = case.forms[0]
    queue = queue_of(case.comm)
    yield Timed(case.method, case.call(in_place), queue)
    if begin := _method(case, nonblocking := f"I{case.method.lower()}"):
        arguments = case.arguments(in_place)
        yield Timed(f"{nonblocking} and Wait", lambda: begin(*arguments).Wait(), queue)
    persistent = f"{case.method}_init"
    if _method(case, persistent):
        # A Startall starts its requests in the same order on all ranks.
        case.comm.ordered_starts = True
        # Some operations have no kernel.
        with suppress(NotSupported):
            requests = [getattr(case.comm, persistent)(*case.arguments(in_place)) for _ in range(TOGETHER)]
            start, wait = partial(Prequest.Startall, requests), partial(Request.Waitall, requests)
            yield Timed(f"{persistent} … Start", requests[0].Start, queue, requests[0].Wait)
            yield Timed(f"{persistent} … Startall of {TOGETHER}, each", start, queue, wait, TOGETHER)
            for request in requests:
                request.Free()
    for name, peer in peers.items():
        theirs = peer.adopt(case)
        call = next(filter(None, (peer.call(theirs, form) for form in case.forms)), None)
        if call is not None:
            yield Timed(f"{case.method}, {name}", call, peer.queue)


def _method(case: Case, name: str) -> Callable[..., Any] | None:
    """Return the communicator's method of this name, or None.

    Return None if the method is mpi4py's own, which accepts no device arrays, or if the case cannot be captured in a
    graph.
    """
    kind = type(case.comm)
    ours = getattr(kind, name, None) is not getattr(MPI.Intracomm, name, None)
    return getattr(case.comm, name) if case.capturable and ours else None


def measure(comm: Any, timed: Timed) -> dict[str, float]:
    """Return median and 99th percentile of a call's host time in µs. Collective.

    Both are the values of the slowest rank.
    """
    times = np.empty(CALLS)
    call, finish, queue = timed.call, timed.finish, timed.queue
    backends.select().synchronize()
    with queue:
        repeat(lambda: (call(), finish()), BATCH)
        for i in range(CALLS):
            if i % BATCH == 0:
                queue.synchronize()
                MPI.Comm.Barrier(comm)
            begin = time.perf_counter()
            call()
            times[i] = time.perf_counter() - begin
            finish()
        queue.synchronize()
    slowest = np.max(MPI.Comm.allgather(comm, np.percentile(times, (50, 99))), axis=0) * 1e6 / timed.operations
    return {"median_us": float(slowest[0]), "p99_us": float(slowest[1])}
