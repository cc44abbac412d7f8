"""Data that names its origin, sizes across thresholds, and comparisons whose errors name the place."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from mpi4py import MPI

from pyncclx.arrays.datatypes import TABLE, Datatype
from pyncclx.memory.layout import Layout
from pyncclx.operators import ops
from pyncclx.operators.ops import BuiltinOp
from support.arrays import POISON, Output, get
from support.op_references import reference

NODES = [node for node in os.environ.get("PYNCCLX_TEST_NODES", "").split(",") if node]  # see conftest.py
_PAIRS = {"float_int": "f4", "double_int": "f8", "long_int": "i8", "int_int": "i4", "short_int": "i2"}


def nodes_of(comm):
    """The node of every rank, numbered by their lowest ranks; None on one node."""
    if not NODES:
        return None
    names = MPI.Intracomm(comm).allgather(NODES[MPI.COMM_WORLD.rank])
    return [list(dict.fromkeys(names)).index(name) for name in names]


def skip_with_nccl(comm):
    """Skip a test of a message that does not fit: between nodes NCCL takes that for an error, and all ends."""
    if comm.spanning is not None and comm.spanning.rails.uses_nccl:
        pytest.skip("what does not fit ends a communicator over nodes with NCCL")


def dtype_of(datatype: Datatype) -> np.dtype:
    """The NumPy dtype with the elements of a pyncclx datatype; a pair's is padded as C pads it."""
    if datatype.kind == "pair":
        return np.dtype([("value", _PAIRS[datatype.name]), ("index", "i4")], align=True)
    return np.dtype(ml_dtypes.bfloat16 if datatype.name == "bfloat16" else datatype.name)


# ---- data ----------------------------------------------------------------------------------------------


def labels(rank: int, count: int, call: int = 0) -> np.ndarray:
    """Elements to move, of int64: each contains its rank, its call and its place."""
    return (np.int64(rank + 1) << 48) + (np.int64(call) << 32) + np.arange(count, dtype=np.int64)


def contributions(size: int, count: int, name: str = "float32", call: int = 0, zeros: float = 0.0) -> list[np.ndarray]:
    """Elements to reduce: what each of `size` ranks contributes. Every rank can make those of all.

    Sums of them depend on the order, integers wrap around, pairs have ties; the first elements are special
    values. `zeros` is the share of elements that are zero.
    """
    datatype, made = TABLE[name], []
    for rank in range(size):
        random = np.random.default_rng([rank, call, count])
        values = _random(random, datatype, count)
        values[random.random(count) < zeros] = np.zeros((), values.dtype)
        made.append(values)
    return made


def _random(random: np.random.Generator, datatype: Datatype, count: int) -> np.ndarray:
    dtype = dtype_of(datatype)
    if datatype.kind == "pair":
        values = np.zeros(count, dtype)  # padding too
        values["value"] = random.integers(-3, 4, count)
        values["index"] = random.integers(-100, 100, count)
        return values
    if datatype.kind == "complex":
        return (random.standard_normal(count) + 1j * random.standard_normal(count)).astype(dtype)
    if datatype.kind == "float":
        values = random.standard_normal(count).astype(dtype)
        limits = ml_dtypes.finfo(dtype)
        special = np.array([0, -0.0, limits.smallest_subnormal, limits.tiny, limits.max, np.inf], dtype)
        values[: special.size] = special[:count]
        return values
    if datatype.kind == "bool":
        return random.integers(0, 2, count).astype(dtype)
    limits = np.iinfo(dtype)
    return random.integers(limits.min, limits.max, count, dtype, endpoint=True)


def named(algorithm: str) -> str | None:
    """The name of an algorithm; None over nodes, where calls take none."""
    return None if NODES else algorithm


def fold(op: BuiltinOp, vectors: Sequence[np.ndarray]) -> np.ndarray:
    """What a reduction gives: the operator's own reference, in rank order; over nodes, first inside each of them."""
    if len(vectors) != len(NODES):
        return fold_in_rank_order(op, vectors)
    inside = ops.SUM if op is ops.AVG else op
    of_nodes: dict[str, list[np.ndarray]] = {}
    for vector, node in zip(vectors, NODES, strict=True):
        of_nodes.setdefault(node, []).append(vector)
    with np.errstate(all="ignore"):
        return reference(op, [reference(inside, each) for each in of_nodes.values()], len(vectors))


def fold_in_rank_order(op: BuiltinOp, vectors: Sequence[np.ndarray]) -> np.ndarray:
    """The operator's own reference. Infinity and overflow are meant."""
    with np.errstate(all="ignore"):
        return reference(op, vectors)


# ---- sizes ---------------------------------------------------------------------------------------------


def counts(layout: Layout, itemsize: int) -> list[int]:
    """Lengths of a vector: nothing, odd, the last that goes as packets and the next, several tiles of chunks."""
    packets = layout.packet_nbytes // itemsize
    tile = layout.chunk_nbytes * layout.size * layout.channels // itemsize
    return [0, 1, 15, 16, 17, packets, packets + 1, tile - 1, 4 * tile + 5]


def block_counts(layout: Layout, itemsize: int) -> list[int]:
    """Lengths of a rank's block, the same way."""
    packets = layout.packet_nbytes // itemsize
    chunk = layout.chunk_nbytes * layout.channels // itemsize
    return [0, 1, 15, 16, 17, packets, packets + 1, chunk - 1, 4 * chunk + 5]


def uneven_counts(layout: Layout, itemsize: int, size: int) -> list[list[int]]:
    """Lengths of the blocks of `size` ranks: none, some empty, around the longest that goes as packets, and chunks."""
    random = np.random.default_rng(size)
    packets = layout.packet_nbytes // itemsize
    chunk = layout.chunk_nbytes * layout.channels // itemsize
    choices = ([0], [0, 1, 15, 16, 17], [packets - 1, packets, packets + 1], [0, 1, chunk, 3 * chunk + 5])
    return [random.choice(each, size).tolist() for each in choices]


def spread(counts: Sequence[int]) -> list[int]:
    """Displacements for blocks of these lengths, the last rank's first, with gaps of three elements."""
    ends = np.cumsum(np.add(counts, 3)[::-1])[::-1]
    return (ends - counts).tolist()


# ---- comparisons ---------------------------------------------------------------------------------------


@contextmanager
def comparing() -> Iterator[Callable[..., None]]:
    """Give a function that compares bit by bit and goes on; fail at the end if something was different.

    Going on lets all ranks make all their calls, so that one wrong element does not end in a hang.
    """
    found: list[str] = []

    def compare(output: Any, expected: np.ndarray, call: str, as_dtype: Any = None) -> None:
        values = output.read() if isinstance(output, Output) else get(output)
        values = values if as_dtype is None else values.view(as_dtype)
        damage = output.damage() if isinstance(output, Output) else ""
        found.extend(f"{call}: {text}" for text in (damage, difference(values, expected)) if text)

    yield compare
    assert not found, "\n".join(found[:5])


def difference(values: np.ndarray, expected: np.ndarray) -> str:
    """Say how two arrays differ, bit by bit; empty if they do not. Processors differ in the bits of "not a number"."""
    if values.shape != expected.shape or values.dtype != expected.dtype:
        return f"{values.dtype} {values.shape} where {expected.dtype} {expected.shape} belongs"
    bad = np.flatnonzero((_bytes(values) != _bytes(expected)).any(axis=1) & ~(_is_nan(values) & _is_nan(expected)))
    if not bad.size:
        return ""
    first = bad[0]
    got, wanted = values.reshape(-1)[first], expected.reshape(-1)[first]
    count = f"{bad.size} of {values.size} elements are wrong"
    return f"{count}, first element {first}: {in_words(got)} is not {in_words(wanted)}"


def _is_nan(values: np.ndarray) -> np.ndarray:
    """Where numbers without parts are none: what makes them unequal to themselves."""
    values = values.reshape(-1)
    return np.zeros(values.size, bool) if values.dtype.names else values != values  # noqa: PLR0124


def _bytes(values: np.ndarray) -> np.ndarray:
    """Rows of one element's bytes; those of pairs without the padding, whose bytes are not defined."""
    if values.dtype.names:
        return np.concatenate([_bytes(np.ascontiguousarray(values[name])) for name in values.dtype.names], axis=1)
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8).reshape(-1, values.dtype.itemsize)


def in_words(value: Any) -> str:
    """A value as text: the parts of a label, or that it was never written."""
    if np.asarray(value).tobytes() == bytes([POISON]) * value.dtype.itemsize:
        return "poison (never written)"
    if value.dtype == np.int64 and value >> 48 in range(1, 17):
        return f"rank {(value >> 48) - 1}, call {value >> 32 & 0xFFFF}, element {value & 0xFFFFFFFF}"
    return repr(value)
