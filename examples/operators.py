"""Operators written in Python: twelve reductions that MPI does not have, checked against NumPy and timed.

    mpiexec -n 4 python -m mpi4py examples/operators.py [name ...] [--nbytes N] [--windows] [--json FILE]

Each is a scalar function. Numba compiles it, and it is linked into the kernel that reduces, so that nothing is left
of the call: on GPUs the last column says how the bandwidth of its Allreduce compares with that of MPI.SUM on as many
bytes, timed in turns with it. Elements are numbers, or records of a NumPy dtype. Two are not commutative, and are right
all the same: reductions go in the order of the ranks.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

import pyncclx

Array = Any


@dataclass(frozen=True)
class Case:
    """An operator, what it should do to two NumPy arrays, and how to make an array."""

    op: pyncclx.Op
    dtype: np.dtype
    pairwise: Callable[[Array, Array], Array]
    make: Callable[[np.random.Generator, int], Array]
    exact: bool = True  # the same bits as NumPy


CASES: dict[str, Case] = {}


def case(name: str, dtype: Any, pairwise: Callable[..., Any], make: Callable[..., Any], **options: Any) -> Callable:
    """Add the function below to the gallery."""

    def add(fn: Callable[..., Any]) -> Callable[..., Any]:
        commute = options.pop("commute", True)
        CASES[name] = Case(pyncclx.Op(fn, dtype, commute=commute), np.dtype(dtype), pairwise, make, **options)
        return fn

    return add


def records(dtype: Any, make: Callable[..., Any]) -> Callable[[np.random.Generator, int], Array]:
    """Make records from what `make` gives: an array of all fields, (elements, numbers of a record)."""
    return lambda random, count: np.ascontiguousarray(make(random, count)).reshape(-1).view(dtype)


# ---- the gallery ---------------------------------------------------------------------------------------


@case("sum", "f4", np.add, lambda r, n: r.standard_normal(n, "f4"))
def plus(a, b):
    return a + b


@case("greatest common divisor", "i8", np.gcd, lambda r, n: r.integers(1, 1 << 40, n) * 360360)
def gcd(a, b):
    while b != 0:
        a, b = b, a % b
    return a


@case("saturating sum", "u2", lambda a, b: np.minimum(a.astype("u4") + b, 65535).astype("u2"),
      lambda r, n: r.integers(0, 65536, n, "u2"))  # fmt: skip
def saturating(a, b):
    total = a + b
    return total | -(total >> 16)  # all bits are set if it has a seventeenth; comparing 64-bit integers takes longer


@case("complex product", "c8", np.multiply, lambda r, n: (r.integers(-3, 4, (n, 2)) @ (1, 1j)).astype("c8"))
def product(a, b):
    return a * b


@case("log of summed exponentials", "f4", np.logaddexp, lambda r, n: r.uniform(-70, 70, n).astype("f4"), exact=False)
def log_sum_exp(a, b):
    greater = max(a, b)
    return greater + math.log1p(math.exp(min(a, b) - greater))


LOCATED = np.dtype([("value", "f4"), ("place", "i4")])


def located(random, count):
    made = np.empty(count, LOCATED)
    made["value"], made["place"] = random.integers(0, 5, count), random.integers(0, 99, count)
    return made


def larger(a, b):
    second = (b["value"] > a["value"]) | ((b["value"] == a["value"]) & (b["place"] < a["place"]))
    return np.where(second, b, a)


@case("maximum and its place", LOCATED, larger, located)
def maxloc(a, b, out):
    if b.value > a.value or (b.value == a.value and b.place < a.place):
        out.value, out.place = b.value, b.place


VECTOR = np.dtype([("x", "f4"), ("y", "f4"), ("z", "f4")])  # 12 bytes: plain arrays of three columns will do


@case("sum of 3-vectors", VECTOR, lambda a, b: (a.view("f4") + b.view("f4")).view(VECTOR),
      records(VECTOR, lambda r, n: r.standard_normal((n, 3), "f4")))  # fmt: skip
def vector_sum(a, b, out):
    out.x = a.x + b.x
    out.y = a.y + b.y
    out.z = a.z + b.z


MOMENTS = np.dtype([("count", "f8"), ("mean", "f8"), ("m2", "f8")])  # m2: sum of squared distances from the mean


def merged(a, b):
    made, count, delta = np.empty_like(a), a["count"] + b["count"], b["mean"] - a["mean"]
    made["count"] = count
    made["mean"] = a["mean"] + delta * b["count"] / count
    made["m2"] = a["m2"] + b["m2"] + delta * delta * a["count"] * b["count"] / count
    return made


@case("mean and variance", MOMENTS, merged, records(MOMENTS, lambda r, n: r.uniform(1, 9, (n, 3))), exact=False)
def merge_moments(a, b, out):  # T. F. Chan, G. H. Golub, R. J. LeVeque, 1979
    count = a.count + b.count
    delta = b.mean - a.mean
    out.count = count
    if count > 0:
        out.mean = a.mean + delta * b.count / count
        out.m2 = a.m2 + b.m2 + delta * delta * a.count * b.count / count


BOX = np.dtype([("low", "f4", 3), ("high", "f4", 3)])


def surrounding(a, b):
    made = np.empty_like(a)
    made["low"], made["high"] = np.minimum(a["low"], b["low"]), np.maximum(a["high"], b["high"])
    return made


@case("bounding box", BOX, surrounding, records(BOX, lambda r, n: np.sort(r.standard_normal((n, 2, 3), "f4"), axis=1)))
def bounding_box(a, b, out):
    for i in range(3):
        out.low[i] = min(a.low[i], b.low[i])
        out.high[i] = max(a.high[i], b.high[i])


QUATERNION = np.dtype([(name, "f4") for name in "wxyz"])


def hamilton(a, b):
    made = np.empty_like(a)
    (w, x, y, z), (p, q, r, s) = ([operand[name] for name in "wxyz"] for operand in (a, b))
    made["w"], made["x"] = w * p - x * q - y * r - z * s, w * q + x * p + y * s - z * r
    made["y"], made["z"] = w * r - x * s + y * p + z * q, w * s + x * r - y * q + z * p
    return made


@case("product of quaternions", QUATERNION, hamilton,
      records(QUATERNION, lambda r, n: r.integers(-2, 3, (n, 4)).astype("f4")), commute=False)  # fmt: skip
def quaternion_product(a, b, out):
    out.w = a.w * b.w - a.x * b.x - a.y * b.y - a.z * b.z
    out.x = a.w * b.x + a.x * b.w + a.y * b.z - a.z * b.y
    out.y = a.w * b.y - a.x * b.z + a.y * b.w + a.z * b.x
    out.z = a.w * b.z + a.x * b.y - a.y * b.x + a.z * b.w


MATRIX = np.dtype([("m", "f8", (2, 2))])


def matmul(a, b):  # not `@`, which adds a zero first: -0.0 would become 0.0
    left, right = a["m"], b["m"]
    return (left[:, :, :1] * right[:, :1] + left[:, :, 1:] * right[:, 1:]).reshape(-1).view(MATRIX)


@case("product of 2 by 2 matrices", MATRIX, matmul,
      records(MATRIX, lambda r, n: r.integers(-3, 4, (n, 4)).astype("f8")), commute=False)  # fmt: skip
def matrix_product(a, b, out):
    for i in range(2):
        for j in range(2):
            out.m[i, j] = a.m[i, 0] * b.m[0, j] + a.m[i, 1] * b.m[1, j]


WORD = np.dtype([("letters", "u1", 8)])


def earlier(a, b):
    second = b.view("S8") < a.view("S8")
    return np.where(second, b.view("S8"), a.view("S8")).view(WORD)


@case("first word of a dictionary", WORD, earlier, records(WORD, lambda r, n: r.integers(97, 100, (n, 8), "u1")))
def first_word(a, b, out):
    ours = theirs = np.uint64(0)
    for i in range(8):  # the first letter counts most
        ours = ours << np.uint64(8) | a.letters[i]
        theirs = theirs << np.uint64(8) | b.letters[i]
    if theirs < ours:
        for i in range(8):
            out.letters[i] = b.letters[i]


# ---- the program ---------------------------------------------------------------------------------------


def contribution(name: str, rank: int, count: int) -> Array:
    """What a rank contributes, as a NumPy array."""
    return CASES[name].make(np.random.default_rng([rank, count]), count)


def expected(name: str, size: int, count: int) -> Array:
    """The reduction of all ranks' contributions by NumPy, in rank order."""
    with np.errstate(all="ignore"):
        return functools.reduce(CASES[name].pairwise, (contribution(name, rank, count) for rank in range(size)))


def agrees(name: str, result: Array, reference: Array) -> bool:
    """Whether a result is right: bit by bit, or to a few roundings where the order of operations is free."""
    if CASES[name].exact:
        return result.tobytes() == reference.tobytes()
    fields = result.dtype.names or (...,)
    return all(_close(result[field], reference[field]) for field in fields)


def _close(result: Array, reference: Array) -> bool:
    some_roundings = 1000 * np.finfo(result.dtype).eps
    return bool(np.allclose(result, reference, rtol=some_roundings, atol=some_roundings))


def seconds(comm: Any, op: Any, send: Array, recv: Array, together: int = 10) -> float:
    """The time of an Allreduce, of some that follow each other, on the slowest rank."""
    comm.synchronize()
    MPI.Comm.Barrier(comm)
    begin = time.perf_counter()
    for _ in range(together):
        comm.Allreduce(send, recv, op)
    comm.synchronize()
    return MPI.Comm.allreduce(comm, time.perf_counter() - begin, MPI.MAX) / together


def compared(comm: Any, op: Any, send: Array, recv: Array, turns: int = 7) -> tuple[float, float]:
    """Bytes per second of an Allreduce, and of one by MPI.SUM of as many bytes; the medians of some turns."""
    words = send.nbytes // 4
    floats = send.view("f4")[:words], recv.view("f4")[:words]
    times = [(seconds(comm, op, send, recv), seconds(comm, MPI.SUM, *floats)) for _ in range(turns + 1)][1:]
    ours, sums = (sorted(column)[turns // 2] for column in zip(*times, strict=True))
    return send.nbytes / ours, words * 4 / sums


class Memory:
    """Where the arrays are: ordinary memory, or what all ranks have mapped."""

    def __init__(self, comm: Any, nbytes: int, windows: bool) -> None:
        xp = importlib.import_module("cupy") if comm.device == "gpu" else np
        make = functools.partial(comm.Alloc, dtype="u1") if windows else functools.partial(xp.empty, dtype="u1")
        self.send, self.recv = make(nbytes), make(nbytes)
        self.asarray = xp.asarray

    def arrays(self, values: Array, plain: Any) -> tuple[Array, Array]:
        """A send buffer with these values, and a receive buffer, both of elements that CuPy has."""
        send, recv = (each[: values.nbytes].view(plain) for each in (self.send, self.recv))
        send[...] = self.asarray(values.view(plain))
        return send, recv


def reduce(comm: Any, name: str, memory: Memory, nbytes: int) -> dict[str, Any]:
    """Reduce some elements again and again until they have `nbytes`: is the result right, and how fast was it?"""
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
    """A row as it is printed."""
    speed = f"{row['bytes_per_second'] / 1e9:8.2f} GB/s, {row['of_sum']:5.3f} of SUM's" if "of_sum" in row else ""
    return f"{row['operator']:28} {row['itemsize']:3} bytes  {'right' if row['right'] else 'WRONG'}  {speed}"


def main() -> int:
    """Run the gallery; 1 if a result is wrong."""
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
