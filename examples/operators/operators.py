"""Operators written in Python: twelve reductions that MPI lacks.

    mpiexec -n 4 python -m mpi4py examples/operators/operators.py [name ...] [--nbytes N] [--windows] [--json FILE]

The operators are the functions in operators_gallery.py. Numba compiles each, and inlines it into the kernel that
reduces. Elements are numbers, or records of a NumPy dtype. Results are compared with NumPy's. On GPUs the last column
is the bandwidth of the operator's Allreduce relative to that of MPI.SUM on as many bytes; the two are timed in turn.
Two operators are not commutative; their results are right because reductions apply operators in rank order.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

import pyncclx
from operators_gallery import CASES, agrees, contribution, expected

Array = Any


def seconds(comm: Any, op: Any, send: Array, recv: Array, together: int = 10) -> float:
    """Return the time of one of several consecutive Allreduces, on the slowest rank."""
    comm.synchronize()
    MPI.Comm.Barrier(comm)
    begin = time.perf_counter()
    for _ in range(together):
        comm.Allreduce(send, recv, op)
    comm.synchronize()
    return MPI.Comm.allreduce(comm, time.perf_counter() - begin, MPI.MAX) / together


def compared(comm: Any, op: Any, send: Array, recv: Array, turns: int = 7) -> tuple[float, float]:
    """Return the median bandwidths of an operator and of MPI.SUM, in bytes per second."""
    words = send.nbytes // 4
    floats = send.view("f4")[:words], recv.view("f4")[:words]
    times = [(seconds(comm, op, send, recv), seconds(comm, MPI.SUM, *floats)) for _ in range(turns + 1)][1:]
    ours, sums = (sorted(column)[turns // 2] for column in zip(*times, strict=True))
    return send.nbytes / ours, words * 4 / sums


class Memory:
    """Source of arrays: ordinary memory, or memory that all ranks have mapped."""

    def __init__(self, comm: Any, nbytes: int, windows: bool) -> None:
        xp = importlib.import_module("cupy") if comm.device == "gpu" else np
        make = functools.partial(comm.Alloc, dtype="u1") if windows else functools.partial(xp.empty, dtype="u1")
        self.send, self.recv = make(nbytes), make(nbytes)
        self.asarray = xp.asarray

    def arrays(self, values: Array, plain: Any) -> tuple[Array, Array]:
        """Return a send buffer with values, and a receive buffer, in types that CuPy has."""
        send, recv = (each[: values.nbytes].view(plain) for each in (self.send, self.recv))
        send[...] = self.asarray(values.view(plain))
        return send, recv


def reduce(comm: Any, name: str, memory: Memory, nbytes: int) -> dict[str, Any]:
    """Reduce `nbytes` of repeated elements; return whether it was right, and how fast."""
    each = CASES[name]
    count = nbytes // each.dtype.itemsize
    some = min(count, 50_000)
    plain = np.dtype("u1") if each.dtype.names else each.dtype
    send, recv = memory.arrays(np.resize(contribution(name, comm.rank, some), count), plain)
    comm.Allreduce(send, recv, each.op)
    result = (recv.get() if comm.device == "gpu" else recv).view(each.dtype)
    right = agrees(name, result, np.resize(expected(name, comm.size, some), count))
    row = {"operator": name, "itemsize": each.dtype.itemsize, "nbytes": send.nbytes}
    row["right"] = MPI.Comm.allreduce(comm, right, MPI.LAND)
    if comm.device == "gpu":
        rate, summed = compared(comm, each.op, send, recv)
        row |= {"bytes_per_second": rate, "of_sum": rate / summed}
    return row


def line(row: dict[str, Any]) -> str:
    """Return a row as text."""
    speed = f"{row['bytes_per_second'] / 1e9:8.2f} GB/s, {row['of_sum']:5.3f} of SUM's" if "of_sum" in row else ""
    return f"{row['operator']:28} {row['itemsize']:3} bytes  {'right' if row['right'] else 'WRONG'}  {speed}"


def main() -> int:
    """Run the gallery; return 1 if a result is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="name", help="of operators; all if left out")
    parser.add_argument("--nbytes", type=int, metavar="N", help="of each rank's elements (GPUs: 64 MiB)")
    parser.add_argument("--windows", action="store_true", help="arrays from comm.Alloc")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table")
    options = parser.parse_args()
    if unknown := [name for name in options.names if name not in CASES]:
        raise SystemExit(f"{', '.join(unknown)}: the operators are {', '.join(CASES)}")
    comm = pyncclx.Communicator(MPI.COMM_WORLD)
    comm.select_device()
    nbytes = options.nbytes or (1 << 26 if comm.device == "gpu" else 1 << 14)
    memory = Memory(comm, nbytes, options.windows)
    rows = []
    for name in options.names or CASES:
        rows.append(reduce(comm, name, memory, nbytes))
        if comm.rank == 0:
            print(line(rows[-1]), flush=True)
    if comm.rank == 0 and options.json:
        about = {"ranks": comm.size, "device": comm.device, "windows": options.windows}
        options.json.write_text(json.dumps(about | {"operators": rows}, indent=1) + "\n")
    return int(not all(row["right"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
