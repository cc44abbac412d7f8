"""Time mpi4py's lower-case methods on objects with and without device arrays.

    mpiexec -n 2 python examples/benchmarks/objects.py --json objects.json
    PYNCCLX_DEVICE=host mpiexec -n 2 python examples/benchmarks/objects.py

pyncclx and mpi4py are timed in turn. A time is the median in microseconds on the slowest rank, including a
synchronisation of the device after each call, so that results are complete. On the host device NumPy arrays take the
place of device arrays, and mpi4py has nothing to copy.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

import pyncclx
from pyncclx.tools.bench import environment

Call = Callable[[], object]


def objects(xp: Any, most: int) -> dict[str, Any]:
    """Return the objects to pass, by name."""
    sizes = {
        f"one array of {nbytes >> 10} KB": nbytes // 4 for nbytes in (4 << 10, 1 << 20, 64 << 20) if nbytes <= most
    }
    return {
        "a dictionary, no array": {"step": 7, "loss": 0.5, "name": "run"},
        **{name: xp.ones(count, "f4") for name, count in sizes.items()},
        "100 arrays of 4 KB": {f"w{i}": xp.ones(1024, "f4") for i in range(100)},
    }


def methods(cls: type[MPI.Intracomm], comm: MPI.Intracomm, obj: Any, *, is_array: bool) -> dict[str, Call]:
    """Return the calls of a class, pyncclx's or mpi4py's, by name."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    calls: dict[str, Call] = {
        "bcast": lambda: cls.bcast(comm, obj if comm.rank == 0 else None),
        "sendrecv": lambda: cls.sendrecv(comm, obj, right, source=left),
        "gather": lambda: cls.gather(comm, obj),
        "allgather": lambda: cls.allgather(comm, obj),
    }
    if is_array:
        calls |= {"allreduce": lambda: cls.allreduce(comm, obj), "reduce": lambda: cls.reduce(comm, obj)}
    return calls


def seconds(comm: MPI.Intracomm, pair: tuple[Call, Call], sync: Call, budget: float) -> list[float]:
    """Return the median seconds of two calls, timed in turn, on the slowest rank."""
    times: list[list[float]] = [[], []]
    for turn in range(100_000):
        for call, taken in zip(pair, times, strict=True):
            # Otherwise the time of a call includes work of other ranks in the previous call.
            MPI.Comm.Barrier(comm)
            began = time.perf_counter()
            call()
            sync()
            taken.append(time.perf_counter() - began)
        if turn % 10 == 9 and MPI.Comm.allreduce(comm, sum(map(sum, times)), MPI.MAX) > budget:
            break
    mine = [statistics.median(each[5:]) for each in times]
    return [max(each) for each in zip(*MPI.Comm.allgather(comm, mine), strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the times to this file, too")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each pair of calls (default %(default)s)")
    options = parser.parse_args()
    comm = pyncclx.Communicator()
    comm.select_device()
    xp: Any = np
    sync: Call = int
    if comm.device != "host":
        import cupy as xp  # noqa: PLC0415  optional

        sync = xp.cuda.Device().synchronize
    rows = []
    for name, obj in objects(xp, 1 << 20 if xp is np else 64 << 20).items():
        is_array = isinstance(obj, xp.ndarray)
        ours = methods(type(comm), comm, obj, is_array=is_array)
        theirs = methods(MPI.Intracomm, comm, obj, is_array=is_array)
        for method in ours:
            own_us, mpi4py_us = (
                1e6 * each for each in seconds(comm, (ours[method], theirs[method]), sync, options.seconds)
            )
            rows.append({"object": name, "method": method, "us": own_us, "mpi4py_us": mpi4py_us})
            if comm.rank == 0:
                print(f"{name:26}{method:10}{own_us:12.1f} µs, mpi4py {mpi4py_us:12.1f}", flush=True)
    about = environment.of(comm)
    if comm.rank == 0:
        environment.write_json(options.json, about, {"objects": rows})


if __name__ == "__main__":
    main()
