"""Time each step on the host of a cached eager Allreduce of 1 KB.

    PYNCCLX_DEVICE=host python examples/benchmarks/hops.py
    mpiexec -n 2 python examples/benchmarks/hops.py --json hops.json

Every step is timed by itself, with the arguments that it has in the call. The whole call is timed with a launch that
does nothing, so the steps can be added up. A time is the least of many means, which other programs disturb little. The
launch itself is the emulator's on the host device, and the driver's on a GPU.
"""

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from mpi4py import MPI

import pyncclx
from pyncclx import events
from pyncclx.collectives.allreduce import allreduce
from pyncclx.launch.keys import key_of_call
from pyncclx.launch.run import by_kernel
from pyncclx.team.state import state_of
from pyncclx.team.streams import stream_for

COUNT = 256  # elements: 1 KB of float32
CALLS, MEANS = 200, 100


def least(call: Callable[[], Any], calls: int = CALLS) -> float:
    """Return the microseconds of one call: the least of many means, without the loop."""
    return min(_mean(call, calls) for _ in range(MEANS)) - min(_mean(_nothing, calls) for _ in range(MEANS))


def _mean(call: Callable[[], Any], calls: int) -> float:
    began = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - began) / calls * 1e6


def _nothing(*_: Any) -> None:
    pass


def hops(comm: Any, x: Any, y: Any) -> dict[str, Callable[[], Any]]:
    """Return the steps of `by_kernel` in pyncclx/launch/run.py for a cached call."""
    state = state_of(comm)
    team = state.team
    assert team is not None
    arguments = x, y, MPI.SUM, None
    key = key_of_call(allreduce, arguments, {})
    cached = team.cached_launches[key]
    plan, parameters, producers, of_current, _, record = cached
    stream = stream_for(team.device, producers, state, of_current)
    launch = plan.function, plan.grid, plan.threads, parameters, stream, plan.early
    return {
        "the communicator's state": lambda: (events.listeners, state_of(comm)),
        "the key of the call": lambda: key_of_call(allreduce, arguments, {}),
        "the launch that was cached": lambda: team.cached_launches.get(key),
        "errors that kernels recorded": team.errors.check,
        "the flight recorder's entry": record or _nothing,
        "the stream": lambda: stream_for(team.device, producers, state, of_current),
        "the order of launches": lambda: team.order.enqueue(*launch),
    }


def measure(comm: Any, xp: Any, sync: Callable[[], Any]) -> dict[str, float]:
    """Return the microseconds of each step, and of the call with and without launch."""
    x, y = xp.ones(COUNT, "f4"), xp.empty(COUNT, "f4")
    comm.Allreduce(x, y)
    comm.Allreduce(x, y)
    sync()
    with mock.patch.object(comm.team.device, "launch", _nothing):
        found = {name: least(hop) for name, hop in hops(comm, x, y).items()}
        inner = least(lambda: by_kernel(comm, allreduce, x, y, MPI.SUM, algorithm=None))
        whole = least(lambda: comm.Allreduce(x, y))
    found["calls from one to the next, arguments"] = inner - sum(found.values())
    found["the method, which could stage host copies"] = whole - inner
    comm.Barrier()
    found["all but the launch"] = whole
    found["with the launch"] = least(lambda: comm.Allreduce(x, y), 1 if comm.device == "host" else 50)
    sync()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the times to this file, too")
    options = parser.parse_args()
    comm = pyncclx.Communicator(MPI.COMM_WORLD)
    comm.select_device()
    if comm.device == "host":
        xp, sync = np, _nothing
    else:
        import cupy as xp  # noqa: PLC0415  optional

        sync = xp.cuda.Device().synchronize
    found = measure(comm, xp, sync)
    if comm.rank == 0:
        print(f"# {comm.size} ranks, {comm.device} device, {platform.machine()}, {os.cpu_count()} CPUs; microseconds")
        print("\n".join(f"{name:44}{value:8.2f}" for name, value in found.items()))
        if options.json:
            result = {"ranks": comm.size, "device": comm.device, "microseconds": found}
            options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
