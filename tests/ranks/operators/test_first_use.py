"""What a rank did before with its own operators, what they had captured, and functions that no kernel can run."""

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from support.arrays import Output, get, host_only, put, synchronize, xp
from support.everywhere import raises_everywhere
from support.reference import comparing

numba = pytest.importorskip("numba", reason="operators written in Python need Numba")
pytestmark = [pytest.mark.parametrize("comm", ["reversed"], indirect=True), pytest.mark.ranks(1, 3)]


def ones(comm, dtype="f4"):
    return put(np.full(5, comm.rank + 1, dtype))


@pytest.mark.ranks(2, 3)
def test_ranks_of_other_histories(comm):
    """Some ranks used operators and transforms on communicators of their own; then all use the same."""

    def product(a, b):
        return a * b

    def add(a, b):
        return a + b

    def twice(x, row, column):
        return 2 * x

    def thrice(x, row, column):
        return 3 * x

    mine = comm.Split(min(comm.rank, 1), comm.rank)
    added, tripled = pyncclx.Op(add), pyncclx.Transform(thrice)
    if comm.rank == 0:
        out = xp.empty(5 * mine.size, "f4")
        for op in (pyncclx.Op(product), pyncclx.Op(product), added):  # and one of all ranks, of other elements
            mine.Allreduce(ones(comm, "f8"), xp.empty(5, "f8"), op)
        mine.Allgather(ones(comm), out, transform=pyncclx.Transform(twice))
    total = np.full(5, sum(range(1, comm.size + 1)), "f4")
    whole = np.repeat(3 * np.arange(1, comm.size + 1, dtype="f4"), 5)
    with comparing() as compare:
        for dtype in ("f4", "f8"):
            recv = Output(5, dtype)
            comm.Allreduce(ones(comm, dtype), recv.array, added)
            compare(recv, total.astype(dtype), f"Allreduce of {dtype}")
        recv = Output(5 * comm.size, "f4")
        comm.Allgather(ones(comm), recv.array, transform=tripled)
        compare(recv, whole, "Allgather")
        with comm.Create_token_shuffle(comm.size, 5 * comm.size, 16, "float32", k=1, max_tokens=5) as shuffle:
            tokens, ids = put(np.full((5, 16), comm.rank + 1, "f4")), put(np.full((5, 1), comm.rank))
            rows, handle = shuffle.dispatch(tokens, ids, transform=tripled)
            sums = shuffle.combine(rows.data, handle, transform=tripled)
            compare(sums, np.full((5, 16), 9 * (comm.rank + 1), "f4"), "dispatch and combine")
    mine.Free()


def test_what_an_operator_has_captured(comm):
    """Globals, closures and arrays count as they were at the first use, in every operation and for every type."""
    shift, table = 1, np.array([10, 20])
    globals()["factor"] = 2

    @pyncclx.Op
    def shifted(a, b):
        return a + b + shift * factor + table[0]  # noqa: F821

    def results(op):
        for dtype in ("i4", "f8"):
            for name, size in (("Allreduce", 5), ("Reduce", 5), ("Scan", 5), ("Reduce_scatter_block", 5)):
                recv = xp.zeros(size, dtype)
                send = put(np.zeros(5 * (comm.size if name == "Reduce_scatter_block" else 1), dtype))
                getattr(comm, name)(send, recv, op)
                folds = {"Scan": comm.rank, "Reduce": (comm.size - 1) * (comm.rank == 0)}.get(name, comm.size - 1)
                yield f"{name} of {dtype}", recv, np.full(size, folds, dtype)

    first = next(iter(results(shifted)))
    synchronize()
    shift, table[0] = 100, 77
    globals()["factor"] = 1000
    with comparing() as compare:
        compare(first[1], first[2] * 12, "first use")
        for what, recv, folds in results(shifted):
            compare(recv, folds * 12, what)
        for what, recv, folds in results(pyncclx.Op(shifted.fn)):
            compare(recv, folds * 100077, f"{what}, another operator")


def test_what_a_transform_has_captured(comm):
    shift = 1

    @pyncclx.Transform
    def shifted(x, row, column):
        return x + shift

    def result(transform, dtype):
        recv = xp.zeros(5 * comm.size, dtype)
        comm.Allgather(put(np.zeros(5, "f4")), recv, transform=transform)
        return get(recv)[0]

    found = [result(shifted, "f4")]
    shift = 100
    found += [result(shifted, "f8"), result(shifted, "f4"), result(pyncclx.Transform(shifted.fn), "f4")]
    assert found == [1, 1, 1, 100]


@pytest.mark.ranks(2, 3)
def test_what_each_rank_has_captured(comm):
    """A rank's own number is that of the rank that sends."""
    own = float(comm.rank)

    @pyncclx.Transform
    def numbered(x, row, column):
        return x + own

    recv = Output(5 * comm.size, "f4")
    comm.Allgather(put(np.zeros(5, "f4")), recv.array, transform=numbered)
    with comparing() as compare:
        compare(recv, np.repeat(np.arange(comm.size, dtype="f4"), 5), "numbers of ranks")


@numba.njit
def checked(a):
    assert a < 3
    return a


def raising(a, b):
    if a > 2:
        raise ValueError("too large")
    return a + b


def asserting(a, b, out):
    out.v = a.v + b.v
    assert a.v < 3


def test_functions_that_raise(comm):
    """No kernel could say so: they are refused at the first use, and the communicator goes on."""
    pairs = np.zeros(5, [("v", "i4")])
    calls = [
        lambda: comm.Allreduce(ones(comm), xp.empty(5, "f4"), pyncclx.Op(raising)),
        lambda: comm.Allreduce(ones(comm), xp.empty(5, "f4"), pyncclx.Op(lambda a, b: checked(a) + b)),
        lambda: comm.Allgather(
            ones(comm),
            xp.empty(5 * comm.size, "f4"),
            transform=pyncclx.Transform(lambda x, row, column: checked(x)),
        ),
    ]
    if isinstance(ones(comm), np.ndarray):
        calls.append(lambda: comm.Allreduce(pairs, pairs.copy(), pyncclx.Op(asserting, pairs.dtype)))
    for call in calls:
        with raises_everywhere(comm, TypeError, r"has a raise or an assert \(.*test_first_use.py, line \d+\)"):
            call()
    recv = Output(5, "f4")
    comm.Allreduce(ones(comm), recv.array, MPI.MAX)
    with comparing() as compare:
        compare(recv, np.full(5, comm.size, "f4"), "afterwards")


@host_only
def test_fields_that_numba_has_not(comm):
    """The exception is that of everything else that Numba cannot compile."""

    def first(a, b, out):
        out.v = a.v

    halves = np.zeros(5, [("v", "f2"), ("n", "i2")])
    with raises_everywhere(comm, TypeError, "Numba cannot compile first"):
        comm.Allreduce(halves, halves.copy(), pyncclx.Op(first, halves.dtype))
