"""Time the first calls of a program: twelve operations, an empty kernel cache.

    mpiexec -n 2 python examples/benchmarks/cold.py
    mpiexec -n 2 python examples/benchmarks/cold.py --ready --json cold.json
    PYNCCLX_DEVICE=host mpiexec -n 2 python examples/benchmarks/cold.py

A time is that of the slowest rank. The first one includes what a communicator prepares once: device, memory, peers.
With `--ready` the program also uses the kernels that were compiled when the package was installed, as programs do.
"""

import argparse
import contextlib
import json
import os
import platform
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

COUNT = 1024  # elements: 4 KB of float32


def operations(comm: Any, xp: Any, sync: Any) -> list[tuple[str, Any]]:
    """Return the operations' calls, by name."""
    size, arrays = comm.size, {}
    for dtype in ("float32", "float64"):
        arrays[dtype] = xp.ones(COUNT, dtype), xp.ones(COUNT * size, dtype), xp.ones(COUNT * size, dtype)
    one, all_of_them, others = arrays["float32"]
    one64, all64, _ = arrays["float64"]
    result, result64 = all_of_them[:COUNT], all64[:COUNT]
    calls = [
        ("Allreduce float32 SUM, 4 KB", lambda: comm.Allreduce(one, result, MPI.SUM)),
        ("Allreduce float32 MAX", lambda: comm.Allreduce(one, result, MPI.MAX)),
        ("Allreduce float64 SUM", lambda: comm.Allreduce(one64, result64, MPI.SUM)),
        ("Allreduce float64 MAX", lambda: comm.Allreduce(one64, result64, MPI.MAX)),
        ("Reduce float32 SUM", lambda: comm.Reduce(one, result, MPI.SUM, 0)),
        ("Reduce_scatter_block float32 SUM", lambda: comm.Reduce_scatter_block(all_of_them, result, MPI.SUM)),
        ("Bcast", lambda: comm.Bcast(one, 0)),
        ("Gather", lambda: comm.Gather(one, others, 0)),
        ("Scan float32 SUM", lambda: comm.Scan(one, result, MPI.SUM)),
        ("Alltoall", lambda: comm.Alltoall(all_of_them, others)),
        ("Allgather", lambda: comm.Allgather(one, others)),
        ("Scatter", lambda: comm.Scatter(all_of_them, result, 0)),
    ]

    def done(call: Any) -> Any:
        return lambda: (call(), sync())

    return [(name, done(call)) for name, call in calls]


def measured(call: Any) -> float:
    """Return the seconds of a call on the slowest rank."""
    MPI.COMM_WORLD.Barrier()
    began = time.perf_counter()
    call()
    return float(MPI.COMM_WORLD.allreduce(time.perf_counter() - began, MPI.MAX))


def measure() -> tuple[dict[str, float], str]:
    """Return the seconds of each operation, and the device's name."""
    began = time.perf_counter()
    import pyncclx  # noqa: PLC0415  its environment is set by now
    from pyncclx import backends  # noqa: PLC0415

    seconds = {"import pyncclx": MPI.COMM_WORLD.allreduce(time.perf_counter() - began, MPI.MAX)}
    comm = pyncclx.Communicator(MPI.COMM_WORLD)
    comm.select_device()
    if os.environ.get("PYNCCLX_DEVICE") == "host":
        xp, sync = np, int
    else:
        import cupy as xp  # noqa: PLC0415  optional

        sync = xp.cuda.Device().synchronize
    calls = operations(comm, xp, sync)
    sync()
    seconds |= {name: measured(call) for name, call in calls}
    began = time.perf_counter()
    for _, call in calls:
        call()
    seconds["all again"] = time.perf_counter() - began
    return seconds, backends.select().kind


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ready", action="store_true", help="use the kernels that the package has ready")
    parser.add_argument("--json", type=Path, help="write the times to this file, too")
    options = parser.parse_args()
    world = MPI.COMM_WORLD
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory()) if world.rank == 0 else ""
        os.environ["PYNCCLX_CACHE"] = world.bcast(folder)
        os.environ["PYNCCLX_READY"] = str(int(options.ready))
        seconds, device = measure()
        world.Barrier()
    if world.rank == 0:
        total = sum(list(seconds.values())[1:-1])
        print(f"# {world.size} ranks on {device}, {platform.processor() or platform.machine()}, {os.cpu_count()} CPUs")
        print("\n".join(f"{name:34}{value:9.3f} s" for name, value in {**seconds, "twelve operations": total}.items()))
        if options.json:
            found = {"ranks": world.size, "device": device, "ready": options.ready, "seconds": seconds, "total": total}
            options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
