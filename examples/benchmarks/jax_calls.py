"""Time calls of pyncclx.jax inside jax.jit: one by one, and in a compiled loop.

    mpiexec -n 2 python examples/benchmarks/jax_calls.py --json jax_calls.json

Each process has one GPU. A time is the median of five means, on the slowest rank. The program does not wait between
consecutive calls. "computation" is a program on the same array that does not communicate.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mpi4py import MPI

import pyncclx

WORLD = MPI.COMM_WORLD
SIZES = 4 << 10, 64 << 10, 1 << 20, 16 << 20  # bytes
IN_A_LOOP, CALLS, REPEATS = 16, 50, 5


def programs() -> dict[str, tuple[Callable[[Any], Any], int]]:
    """Return compiled programs, each with the number of calls that it makes."""
    import jax  # noqa: PLC0415  after the choice of the GPU

    from pyncclx.jax import allreduce, sendrecv  # noqa: PLC0415

    right, left = (WORLD.rank + 1) % WORLD.size, (WORLD.rank - 1) % WORLD.size

    def step(_: int, x: Any) -> Any:
        return allreduce(x, MPI.SUM) / WORLD.size

    return {
        "computation": (jax.jit(lambda x: x * 0.5 + 1), 1),
        "allreduce": (jax.jit(lambda x: allreduce(x, MPI.SUM)), 1),
        "allreduce in a loop": (jax.jit(lambda x: jax.lax.fori_loop(0, IN_A_LOOP, step, x)), IN_A_LOOP),
        "sendrecv": (jax.jit(lambda x: sendrecv(x, x, source=left, dest=right)), 1),
    }


def mean_us(program: Callable[[Any], Any], x: Any) -> float:
    """Return the microseconds of one run: the median of several means."""
    import jax  # noqa: PLC0415

    jax.block_until_ready(program(x))
    means = []
    for _ in range(REPEATS):
        WORLD.Barrier()
        begin = time.perf_counter()
        for _ in range(CALLS):
            result = program(x)
        jax.block_until_ready(result)
        means.append((time.perf_counter() - begin) / CALLS * 1e6)
    return float(WORLD.allreduce(statistics.median(means), MPI.MAX))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the figures to this file, too")
    options = parser.parse_args()
    gpu = pyncclx.Communicator().select_device()
    import jax  # noqa: PLC0415

    jax.config.update("jax_default_device", jax.devices()[gpu])
    rows, every = [], programs()
    for nbytes in SIZES:
        x = jax.numpy.ones(nbytes // 4, "float32")
        for name, (program, calls) in every.items():
            rows.append({"call": name, "nbytes": nbytes, "us": mean_us(program, x) / calls})
            if WORLD.rank == 0:
                print("{call:24}{nbytes:>10} B {us:8.1f} µs".format_map(rows[-1]), flush=True)
    if WORLD.rank == 0 and options.json:
        about = {"gpu": jax.devices()[gpu].device_kind, "ranks": WORLD.size, "date": time.strftime("%Y-%m-%d")}
        about |= {"jax": jax.__version__, "pyncclx": pyncclx.__version__}
        options.json.write_text(json.dumps({"environment": about, "jax": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
