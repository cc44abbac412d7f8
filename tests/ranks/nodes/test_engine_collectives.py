"""Calls that are a collective of NCCL's where each rank is alone on its node; those of MPI are in their place here."""

import functools

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx.collectives.over_nodes import allreduce
from pyncclx.nodes import spanning
from pyncclx.nodes.mpi_engine import MpiEngine
from pyncclx.nodes.rails import Rails
from support.arrays import Output, host_only, memory_at, put
from support.reference import comparing, labels

WORLD = MPI.COMM_WORLD
SIZE, RANK = WORLD.size, WORLD.rank
COUNTS = (1, 37, 4_096, 40_001)  # elements of eight bytes: 4,096 are the most of a short Allreduce
pytestmark = [pytest.mark.ranks(2, 4), host_only]


def broadcast(engine, address, nbytes, root, stream):
    engine.do("broadcast", lambda: engine.comm.Bcast(memory_at(address, nbytes), root), stream)


def allgather(engine, own, everything, nbytes, stream):
    whole = memory_at(everything, nbytes * SIZE)
    engine.do("allgather", lambda: engine.comm.Allgather(memory_at(own, nbytes).copy(), whole), stream)


def alltoall(engine, send, recv, nbytes, stream):
    blocks = memory_at(send, nbytes * SIZE), memory_at(recv, nbytes * SIZE)
    engine.do("alltoall", lambda: engine.comm.Alltoall(*blocks), stream)


def folded(engine, send, nbytes, reduction):
    """All ranks' vectors, in another order than kernels fold them."""
    assert reduction.count(nbytes) * DTYPES[reduction.datatype].itemsize == nbytes
    every = engine.comm.allgather(memory_at(send, nbytes).copy().view(DTYPES[reduction.datatype]))
    return UFUNCS[reduction.operator].reduce(every[::-1], axis=0)


def all_reduce(engine, send, recv, nbytes, reduction, stream):
    def reduce_to_all():
        memory_at(recv, nbytes)[:] = folded(engine, send, nbytes, reduction).view("u1")

    engine.do("allreduce", reduce_to_all, stream)


def reduce(engine, send, recv, nbytes, reduction, root, stream):
    def reduce_to_root():
        result = folded(engine, send, nbytes, reduction).view("u1")
        if root == RANK:
            memory_at(recv, nbytes)[:] = result

    engine.do("reduce", reduce_to_root, stream)


def reduce_scatter(engine, send, recv, nbytes, reduction, stream):
    own = send + RANK * nbytes
    assert recv == own or recv + nbytes <= send or send + SIZE * nbytes <= recv, "NCCL has still to read what it writes"

    def reduce_to_each():
        result = folded(engine, send, nbytes * SIZE, reduction).view("u1")
        memory_at(recv, nbytes)[:] = result[RANK * nbytes :][:nbytes]

    engine.do("reduce-scatter", reduce_to_each, stream)


# As NCCL numbers them
DTYPES = {2: np.dtype("i4"), 4: np.dtype("i8"), 7: np.dtype("f4"), 8: np.dtype("f8")}
UFUNCS = (np.add, np.multiply, np.maximum, np.minimum)


@pytest.fixture
def comm(monkeypatch):
    """A communicator with each rank alone on its node, whose engine has collectives."""
    monkeypatch.setenv("PYNCCLX_NODE", str(RANK))
    monkeypatch.setattr(MpiEngine, "broadcast", broadcast, raising=False)
    monkeypatch.setattr(MpiEngine, "allgather", allgather, raising=False)
    monkeypatch.setattr(MpiEngine, "alltoall", alltoall, raising=False)
    monkeypatch.setattr(MpiEngine, "allreduce", all_reduce, raising=False)
    monkeypatch.setattr(MpiEngine, "reduce", reduce, raising=False)
    monkeypatch.setattr(MpiEngine, "reduce_scatter", reduce_scatter, raising=False)
    monkeypatch.setattr(Rails, "has_collectives", True)
    monkeypatch.setattr(spanning.Spanning, "is_short", lambda *_: False)
    monkeypatch.setattr(allreduce, "ALONE_SEGMENT_NBYTES", 100_000)
    monkeypatch.setattr(allreduce, "WHOLE_NBYTES", 200_000)
    comm = pyncclx.Communicator().Dup()
    yield comm
    comm.Free()


@pytest.mark.parametrize("count", COUNTS)
def test_bcast(comm, count):
    with comparing() as compare:
        for root in range(SIZE):
            output = Output(count, "i8").fill(labels(RANK, count, root))
            comm.Bcast(output.array, root)
            compare(output, labels(root, count, root), f"root {root}")


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("in_place", [False, True], ids=["two buffers", "in place"])
def test_allgather(comm, count, in_place):
    expected = np.concatenate([labels(rank, count) for rank in range(SIZE)])
    output = Output(SIZE * count, "i8")
    if in_place:
        values = output.read().copy()
        values[RANK * count :][:count] = labels(RANK, count)
        output.fill(values)
    comm.Allgather(MPI.IN_PLACE if in_place else put(labels(RANK, count)), output.array)
    with comparing() as compare:
        compare(output, expected, "Allgather")


@pytest.mark.parametrize("count", [0, *COUNTS])
@pytest.mark.parametrize("in_place", [False, True], ids=["two buffers", "in place"])
def test_alltoall(comm, count, in_place):
    with comparing() as compare:
        for call in range(2):
            values, expected = labels(RANK, SIZE * count, call), np.empty(SIZE * count, "i8")
            MPI.Intracomm.Alltoall(comm, values, expected)
            output = Output(SIZE * count, "i8")
            if in_place:
                output.fill(values)
            comm.Alltoall(MPI.IN_PLACE if in_place else put(values), output.array)
            compare(output, expected, f"call {call}")


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("in_place", [False, True], ids=["two buffers", "in place"])
@pytest.mark.parametrize("op", [MPI.SUM, MPI.MAX])
def test_allreduce(comm, count, in_place, op):
    with comparing() as compare:
        for call in range(2):  # the second is a call that has come already
            values, expected, output = labels(RANK, count, call), np.empty(count, "i8"), Output(count, "i8")
            MPI.Intracomm.Allreduce(comm, values, expected, op)
            if in_place:
                output.fill(values)
            comm.Allreduce(MPI.IN_PLACE if in_place else put(values), output.array, op)
            compare(output, expected, f"call {call}")


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("in_place", [False, True], ids=["two buffers", "in place"])
def test_reduce(comm, count, in_place):
    with comparing() as compare:
        for root in (*range(SIZE), 0):
            values, expected, output = labels(RANK, count, root), np.empty(count, "i8"), Output(count, "i8")
            MPI.Intracomm.Reduce(comm, values, expected, MPI.SUM, root)
            if in_place and root == RANK:
                output.fill(values)
            send = MPI.IN_PLACE if in_place and root == RANK else put(values)
            comm.Reduce(send, output.array if root == RANK else None, MPI.SUM, root)
            if root == RANK:
                compare(output, expected, f"root {root}")


@pytest.mark.parametrize(
    ("first", "count", "in_place"),
    [(0, 1, False), (0, 17, True), (0, 1001, False), (3, 20_001, False), (3, 20_001, True)],
)
def test_reduce_scatter(comm, first, count, in_place):
    """Of unequal blocks; one of them is empty. In place a result may be where a part of its block is."""
    counts = [first + count * rank for rank in range(SIZE)]
    with comparing() as compare:
        for call in range(2):
            values, expected = labels(RANK, sum(counts), call), np.empty(counts[RANK], "i8")
            MPI.Intracomm.Reduce_scatter(comm, values, expected, counts, MPI.MAX)
            output = Output(sum(counts) if in_place else counts[RANK], "i8")
            if in_place:
                output.fill(values)
            comm.Reduce_scatter(MPI.IN_PLACE if in_place else put(values), output.array, counts, MPI.MAX)
            compare(output.read()[: counts[RANK]], expected, f"call {call}")


@pytest.mark.parametrize("count", [1, 101, 4_001])
def test_reduce_scatter_block(comm, count):
    values, expected, output = labels(RANK, SIZE * count), np.empty(count, "i8"), Output(count, "i8")
    MPI.Intracomm.Reduce_scatter_block(comm, values, expected)
    comm.Reduce_scatter_block(put(values), output.array)
    with comparing() as compare:
        compare(output, expected, "Reduce_scatter_block")


def test_records(comm):
    """Values with their places, and as many of them as do not go in one piece."""
    count, dtype = 4_097, np.dtype([("value", "f8"), ("place", "i4")], align=True)
    values = np.zeros(count, dtype)
    values["value"], values["place"] = (np.arange(count) * 7 + RANK * 3) % 11, RANK
    every = np.array(WORLD.allgather(values["value"]))
    output = Output(count, dtype)
    comm.Allreduce([put(values), MPI.DOUBLE_INT], [output.array, MPI.DOUBLE_INT], MPI.MINLOC)
    with comparing() as compare:
        compare(output.read()["value"], every.min(axis=0), "values")
        compare(output.read()["place"], every.argmin(axis=0).astype("i4"), "places")


def test_explain(comm):
    assert "NCCL's allgather" in comm.explain("Allreduce", 8)
    assert ("NCCL's allgather" in comm.explain("Allreduce", 1 << 20)) == (SIZE == 2)
    assert "NCCL's allgather" in comm.explain("Reduce_scatter", 8)
    assert "NCCL's allgather" not in comm.explain("Reduce_scatter", 1 << 20)
    assert ("NCCL's broadcast" in comm.explain("Reduce", 8)) == (SIZE == 2)
    assert "collective of NCCL's" in comm.explain("Bcast", 8)


def parts(count, dtype):
    """Of every rank, numbers whose sum depends on their order if there are more than two ranks."""
    numbers = [np.random.default_rng([rank, count]).standard_normal(count) for rank in range(SIZE)]
    return [(each * 1000.0 * 10 ** (rank % 3 * 2)).astype(dtype) for rank, each in enumerate(numbers)]


def in_order(every, ufunc=np.add):
    return functools.reduce(ufunc, every)


def in_reverse(every):
    return in_order(every[::-1])


@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16"])
@pytest.mark.parametrize("deterministic", [True, False])
def test_the_order_of_sums(comm, dtype, deterministic):
    """That of the ranks, unless the program has given it up; then that of the engine, which is another one here."""
    comm.deterministic = deterministic
    fold = in_order if deterministic or SIZE == 2 else in_reverse
    count = 60_000 if np.dtype(dtype).itemsize < 8 else 30_000
    every = parts(count, dtype)
    assert SIZE == 2 or (in_order(every) != in_reverse(every)).any()
    with comparing() as compare:
        for call in range(2):
            output = Output(count, dtype)
            comm.Allreduce(put(every[RANK]), output.array)
            compare(output, fold(every), f"Allreduce, call {call}")
            for root in range(SIZE):
                output = Output(count, dtype)
                comm.Reduce(put(every[RANK]), output.array if root == RANK else None, root=root)
                if root == RANK:
                    compare(output, fold(every), f"Reduce to {root}, call {call}")
            block = Output(20, dtype)
            comm.Reduce_scatter_block(put(every[RANK][: 20 * SIZE]), block.array)
            compare(block, fold(every)[20 * RANK :][:20], f"Reduce_scatter_block, call {call}")


def test_a_new_order_counts_for_calls_that_have_come(comm):
    every, output = parts(60_000, "f4"), Output(60_000, "f4")
    send = put(every[RANK])
    with comparing() as compare:
        for comm.deterministic in (True, False, True):
            comm.Allreduce(send, output.array)
            fold = in_order if comm.deterministic or SIZE == 2 else in_reverse
            compare(output, fold(every), f"deterministic is {comm.deterministic}")
        assert comm.Dup().deterministic


@pytest.mark.parametrize(
    ("op", "ufunc", "dtype"),
    [
        (pyncclx.Op(lambda a, b: a + b), np.add, "i4"),
        (MPI.MAX, np.maximum, "f4"),
        (MPI.SUM, np.add, "i2"),
        (MPI.BOR, np.bitwise_or, "i4"),
    ],
)
def test_what_is_folded_by_kernels(comm, monkeypatch, op, ufunc, dtype):
    """What NCCL has not, and maxima of floating-point numbers."""
    for name in ("allreduce", "reduce", "reduce_scatter"):
        monkeypatch.setattr(MpiEngine, name, None)
    comm.deterministic = False
    every = parts(120_000, dtype)
    expected = in_order(every, ufunc)
    with comparing() as compare:
        output = Output(120_000, dtype)
        comm.Allreduce(put(every[RANK]), output.array, op)
        compare(output, expected, "Allreduce")
        for root in range(SIZE):
            output = Output(120_000, dtype)
            comm.Reduce(put(every[RANK]), output.array if root == RANK else None, op, root)
            if root == RANK:
                compare(output, expected, f"Reduce to {root}")
        for count in 20, 10_000:
            output = Output(count, dtype)
            comm.Reduce_scatter_block(put(every[RANK][: count * SIZE]), output.array, op)
            compare(output, expected[count * RANK :][:count], f"Reduce_scatter_block of {count}")


def test_blocks_in_place(comm):
    """The result is where other ranks' blocks are: these are read until all have come."""
    every = parts(SIZE * 30, "i8")
    output = Output(SIZE * 30, "i8").fill(every[RANK])
    comm.Reduce_scatter_block(MPI.IN_PLACE, output.array)
    with comparing() as compare:
        compare(output.read()[:30], in_order(every)[30 * RANK :][:30], "Reduce_scatter_block")
