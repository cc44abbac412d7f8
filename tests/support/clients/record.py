"""Records what a client's program computes and how long it takes: lines of JSON in the file that CLIENT_RECORD names.

As a plugin of pytest (``-p support.clients.record``) it records the tests of each rank, in files of their own.
"""

import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

_seconds: dict[str, float] = {}
_outcomes: dict[str, tuple[str, str]] = {}


def _write(entry: dict[str, Any], rank: int) -> None:
    with open(f"{os.environ['CLIENT_RECORD']}.{rank}", "a") as file:
        print(json.dumps(entry), file=file)


def value(comm: Any, name: str, *numbers: float) -> None:
    """Record numbers that have to be the same whoever moves the data, but for rounding."""
    _write({"name": name, "value": [float(number) for number in numbers]}, comm.rank)


def timed(
    comm: Any, name: str, call: Callable[[], Any], repeats: int = 7, sync: Callable[[], Any] = int, each: int = 1
) -> Any:
    """Record the median of a call's seconds after two calls that warm up, and return the last result.

    A call may do what is timed several times: `each` times.
    """
    taken = []
    for _ in range(repeats + 2):
        comm.Barrier()
        began = time.perf_counter()
        result = call()
        sync()
        taken.append(time.perf_counter() - began)
    _write({"name": name, "seconds": statistics.median(taken[2:]) / each}, comm.rank)
    return result


def pytest_runtest_logreport(report: Any) -> None:
    """Keep the worst outcome of a test's phases."""
    _seconds[report.nodeid] = _seconds.get(report.nodeid, 0.0) + report.duration
    if report.outcome != "passed" or report.when == "call":
        _outcomes[report.nodeid] = report.outcome, str(report.longrepr)[-600:] if report.failed else ""


def pytest_sessionfinish() -> None:
    """Write the tests of this rank."""
    from mpi4py import MPI  # noqa: PLC0415  as late as the client itself

    for test, (outcome, why) in _outcomes.items():
        _write({"name": test, "outcome": outcome, "why": why, "seconds": _seconds[test]}, MPI.COMM_WORLD.rank)
