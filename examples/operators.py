"""Operators written in Python: twelve reductions that MPI does not have, checked against NumPy and timed.

    mpiexec -n 4 python examples/operators.py [elements]

Each is a scalar function. Numba compiles it, and it is linked into the kernel that reduces, so that nothing is left
of the call: on GPUs the last column says how the bandwidth of its Allreduce compares with that of MPI.SUM on as many
bytes. Elements are numbers, or records of a NumPy dtype. Two are not commutative, and are right all the same:
reductions go in the order of the ranks.
"""

from __future__ import annotations

import functools
import importlib
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
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


@case("saturating sum", "i1", lambda a, b: np.clip(a.astype("i2") + b, -128, 127).astype("i1"),
      lambda r, n: r.integers(-128, 128, n, "i1"))  # fmt: skip
def saturating(a, b):
    return max(-128, min(127, a + b))


@case("complex product", "c8", np.multiply, lambda r, n: (r.integers(-3, 4, (n, 2)) @ (1, 1j)).astype("c8"))
def product(a, b):
    return a * b


@case("log of summed exponentials", "f8", np.logaddexp, lambda r, n: r.uniform(-700, 700, n), exact=False)
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
    for i in range(8):
        if a.letters[i] != b.letters[i]:
            if b.letters[i] < a.letters[i]:
                for j in range(8):
                    out.letters[j] = b.letters[j]
            return


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
    return all(np.allclose(result[field], reference[field], rtol=1e-12) for field in fields)


def bandwidth(comm: Any, op: Any, send: Array, recv: Array, repetitions: int = 5) -> float:
    """Bytes per second of an Allreduce, the best of some."""
    best = math.inf
    for _ in range(repetitions + 1):  # the first prepares
        comm.synchronize()
        MPI.Comm.Barrier(comm)
        begin = time.perf_counter()
        comm.Allreduce(send, recv, op)
        comm.synchronize()
        best = min(best, MPI.Comm.allreduce(comm, time.perf_counter() - begin, MPI.MAX))
    return send.nbytes / best


def main() -> int:
    """Run the gallery; 1 if a result is wrong."""
    comm = pyncclx.Communicator(MPI.COMM_WORLD)
    comm.select_device()
    gpu = comm.device == "gpu"
    xp = importlib.import_module("cupy") if gpu else np
    count = int(sys.argv[1]) if len(sys.argv) > 1 else (1 << 23 if gpu else 1 << 12)
    wrong = 0
    for name, each in CASES.items():
        send = xp.asarray(contribution(name, comm.rank, count).view("u1"))
        if not each.dtype.names:
            send = send.view(each.dtype)
        recv = xp.empty_like(send)
        rate = bandwidth(comm, each.op, send, recv)
        words = send.nbytes // 4
        summed = bandwidth(comm, MPI.SUM, send.view("f4")[:words], recv.view("f4")[:words]) if gpu else math.nan
        comm.Allreduce(send, recv, each.op)
        result = (recv.get() if gpu else recv).view(each.dtype)
        right = agrees(name, result, expected(name, comm.size, count))
        wrong += MPI.Comm.allreduce(comm, not right, MPI.LOR)
        if comm.rank == 0:
            speed = f"{rate / 1e9:8.2f} GB/s, {rate / summed:5.2f} of SUM's" if gpu else ""
            print(f"{name:28} {each.dtype.itemsize:3} bytes  {'right' if right else 'WRONG'}  {speed}", flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
