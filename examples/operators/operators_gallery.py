"""Twelve reduction operators written in Python, each with its NumPy counterpart.

An operator is a scalar function of two numbers, or of two records and the record that receives their reduction.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import pyncclx

Array = Any


@dataclass(frozen=True)
class Case:
    """An operator, its effect on two NumPy arrays, and a function that makes an array."""

    op: pyncclx.Op
    dtype: np.dtype
    pairwise: Callable[[Array, Array], Array]
    make: Callable[[np.random.Generator, int], Array]
    exact: bool = True  # whether the bits equal NumPy's


CASES: dict[str, Case] = {}


def case(name: str, dtype: Any, pairwise: Callable[..., Any], make: Callable[..., Any], **options: Any) -> Callable:
    """Return a decorator that adds the operator below to the gallery."""

    def add(fn: Callable[..., Any]) -> Callable[..., Any]:
        commute = options.pop("commute", True)
        CASES[name] = Case(pyncclx.Op(fn, dtype, commute=commute), np.dtype(dtype), pairwise, make, **options)
        return fn

    return add


def records(dtype: Any, make: Callable[..., Any]) -> Callable[[np.random.Generator, int], Array]:
    """Return a function that makes records from an array of all their numbers."""
    return lambda random, count: np.ascontiguousarray(make(random, count)).reshape(-1).view(dtype)


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


VECTOR = np.dtype([("x", "f4"), ("y", "f4"), ("z", "f4")])  # 12 bytes; plain arrays of three columns work too


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


def matmul(a, b):  # `@` would add a zero first, which turns -0.0 into 0.0
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


def contribution(name: str, rank: int, count: int) -> Array:
    """Return a rank's contribution as a NumPy array."""
    return CASES[name].make(np.random.default_rng([rank, count]), count)


def expected(name: str, size: int, count: int) -> Array:
    """Reduce all ranks' contributions by NumPy, in rank order."""
    with np.errstate(all="ignore"):
        return functools.reduce(CASES[name].pairwise, (contribution(name, rank, count) for rank in range(size)))


def agrees(name: str, result: Array, reference: Array) -> bool:
    """Return whether a result is right.

    Bits are compared if the operator is exact; otherwise a few roundings are allowed.
    """
    if CASES[name].exact:
        return result.tobytes() == reference.tobytes()
    fields = result.dtype.names or (...,)
    return all(_close(result[field], reference[field]) for field in fields)


def _close(result: Array, reference: Array) -> bool:
    some_roundings = 1000 * np.finfo(result.dtype).eps
    return bool(np.allclose(result, reference, rtol=some_roundings, atol=some_roundings))
