"""Operators of a program's own over pretend nodes: in rank order, whatever the assignment of ranks to nodes."""

import functools

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from support.arrays import HOST, put, xp

pytest.importorskip("numba", reason="operators written in Python need Numba")

WORLD = MPI.COMM_WORLD
SIZE, RANK = WORLD.size, WORLD.rank
LAYOUTS = {"halves": 2 * RANK // SIZE, "in turn": RANK % 2, "unequal": min(RANK, 1)}
AFFINE = np.dtype([("a", "i4"), ("b", "i4"), ("c", "i4")])  # x -> a * x + b, and how many there are
pytestmark = pytest.mark.ranks(2)


@pytest.fixture(scope="module", params=LAYOUTS)
def comm(request):
    """A communicator over pretend nodes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYNCCLX_NODE", str(LAYOUTS[request.param]))
        comm = pyncclx.Communicator().Dup()
        assert comm.spanning is not None
        yield comm
        comm.Free()


def words(rank, count):
    """Pairs (a, b) of 32-bit integers as words: x -> a * x + b."""
    a, b = (np.arange(count) + rank) % 7 + 1, np.arange(count) * 3 + rank
    return (a.astype("u8") << np.uint64(32) | b.astype("u8")).astype("u8")


def after(left, right):
    """The right function after the left one: associative, but not commutative."""
    a = ((left >> 32) * (right >> 32)) & 0xFFFFFFFF
    b = ((left & 0xFFFFFFFF) * (right >> 32) + (right & 0xFFFFFFFF)) & 0xFFFFFFFF
    return (a << 32) | b


OP = pyncclx.Op(after)


def expected(ranks, count):
    return functools.reduce(after, [words(rank, count) for rank in ranks])


@pytest.mark.parametrize("count", [1, 37, 20_000])
def test_order_of_ranks(comm, count):
    recv, part = xp.zeros(count, "u8"), xp.zeros(count, "u8")
    comm.Allreduce(put(words(RANK, count)), recv, OP)
    comm.synchronize()
    assert np.array_equal(read(recv), expected(range(SIZE), count))
    for root in range(SIZE):
        comm.Reduce(put(words(RANK, count)), part if root == RANK else None, OP, root)
        comm.synchronize()
    assert np.array_equal(read(part), expected(range(SIZE), count))
    comm.Scan(put(words(RANK, count)), recv, OP)
    comm.Reduce_scatter_block(put(words(RANK, count * SIZE)), part, OP)
    comm.synchronize()
    assert np.array_equal(read(recv), expected(range(RANK + 1), count))
    assert np.array_equal(read(part), expected(range(SIZE), count * SIZE)[count * RANK : count * (RANK + 1)])


def compose(left, right, result):
    result.a = left.a * right.a
    result.b = left.b * right.a + right.b
    result.c = left.c + right.c


@pytest.mark.skipif(not HOST, reason="CuPy has no records")
@pytest.mark.parametrize("count", [1, 37, 9_000])
def test_records_of_twelve_bytes(comm, count):
    op = pyncclx.Op(compose, AFFINE)
    vectors = [np.zeros(count, AFFINE) for _ in range(SIZE)]
    for rank, vector in enumerate(vectors):
        vector["a"], vector["b"], vector["c"] = np.arange(count) % 3 + 1 + rank % 2, np.arange(count) + rank, 1
    wanted = vectors[0].copy()
    for vector in vectors[1:]:
        wanted["a"], wanted["b"] = wanted["a"] * vector["a"], wanted["b"] * vector["a"] + vector["b"]
        wanted["c"] += vector["c"]
    recv = np.zeros(count, AFFINE)
    comm.Allreduce(vectors[RANK], recv, op)
    comm.synchronize()
    assert np.array_equal(recv, wanted)
    comm.Reduce(vectors[RANK], recv if RANK == SIZE - 1 else None, op, SIZE - 1)
    comm.synchronize()
    assert np.array_equal(recv, wanted)


def read(array):
    return array if HOST else xp.asnumpy(array)
