"""Reduce_scatter: rank r gets its block of the fold of all ranks' vectors; blocks are of any length."""

import numpy as np
import pytest
from mpi4py import MPI

from pyncclx.operators import ops
from support.arrays import Output, put
from support.lease import layout_of
from support.reference import comparing, contributions, fold, uneven_counts


def block(comm, counts, vectors, op=ops.SUM):
    """What this rank gets."""
    begin = sum(counts[: comm.rank])
    return fold(op, [vector[begin : begin + counts[comm.rank]] for vector in vectors])


@pytest.mark.parametrize("algorithm", ["one_shot", "two_shot", None])
def test_counts(comm, algorithm):
    layout = layout_of(comm)
    with comparing() as compare:
        for call, counts in enumerate(uneven_counts(layout, 4, comm.size)):
            if algorithm == "one_shot" and max(counts) * 4 > layout.packet_nbytes:
                continue
            vectors = contributions(comm.size, sum(counts), call=call)
            send, recv = put(vectors[comm.rank]), Output(counts[comm.rank], "f4")
            comm.Reduce_scatter(send, recv.array, counts, algorithm=algorithm)
            compare(recv, block(comm, counts, vectors), f"counts {counts}")
            compare(send, vectors[comm.rank], f"counts {counts}: sendbuf")


def test_counts_left_out(comm):
    """The ranks then exchange the lengths of their recvbufs."""
    counts = [(3 * rank + 1) % 5 for rank in range(comm.size)]
    vectors, recv = contributions(comm.size, sum(counts)), Output(counts[comm.rank], "f4")
    comm.Reduce_scatter(put(vectors[comm.rank]), recv.array)
    with comparing() as compare:
        compare(recv, block(comm, counts, vectors), f"counts {counts}")


@pytest.mark.parametrize("nothing", [MPI.IN_PLACE, None])
def test_in_place(comm, nothing):
    """As in MPI, recvbuf then has all blocks, and the result goes to its beginning; behind it nothing changes."""
    size, layout = comm.size, layout_of(comm)
    large = 5 * layout.chunk_nbytes * layout.channels // 4 + 3
    overlapping = [[1, *[each] * (size - 1)] for each in (50, large)]
    apart = [[*[each] * (size - 1), each - 1] for each in (50, large)]
    with comparing() as compare:
        for counts in (*uneven_counts(layout, 4, size), *overlapping, *apart):
            vectors = contributions(size, sum(counts))
            recv = Output(sum(counts), "f4").fill(vectors[comm.rank])
            comm.Reduce_scatter(nothing, recv.array, counts)
            result, rest = np.split(recv.read(), [counts[comm.rank]])
            compare(put(result), block(comm, counts, vectors), f"counts {counts}")
            compare(put(rest), vectors[comm.rank][counts[comm.rank] :], f"counts {counts}: behind the result")
            assert not recv.damage()


@pytest.mark.ranks(2)
def test_in_place_on_some_ranks(comm):
    """MPI does not ask that all are."""
    counts = [30 + rank for rank in range(comm.size)]
    vectors = contributions(comm.size, sum(counts))
    whole, recv = Output(sum(counts), "f4").fill(vectors[comm.rank]), Output(counts[comm.rank], "f4")
    if comm.rank % 2:
        comm.Reduce_scatter(MPI.IN_PLACE, whole.array, counts)
    else:
        comm.Reduce_scatter(put(vectors[comm.rank]), recv.array, counts)
    result = put(whole.read()[: counts[comm.rank]]) if comm.rank % 2 else recv
    with comparing() as compare:
        compare(result, block(comm, counts, vectors), f"counts {counts}")


@pytest.mark.parametrize("name", ["int8", "float32"])
def test_unaligned_slices(comm, name):
    with comparing() as compare:
        for even in uneven_counts(layout_of(comm), 4, comm.size):
            counts = [count | 1 for count in even]
            vectors = contributions(comm.size, sum(counts), name)
            recv = Output(counts[comm.rank], name, offset=3)
            comm.Reduce_scatter(put(vectors[comm.rank], 1), recv.array, counts)
            compare(recv, block(comm, counts, vectors), f"counts {counts}")


@pytest.mark.parametrize("comm", ["reversed"], indirect=True)
@pytest.mark.parametrize(("name", "op"), [("complex128", "SUM"), ("float16", "AVG"), ("short_int", "MINLOC")])
def test_datatypes(comm, name, op):
    """Each with one operator; test_allreduce.py has them all, and the kernels share the fold."""
    op = ops.TABLE[op]
    with comparing() as compare:
        for counts in uneven_counts(layout_of(comm), 16, comm.size):
            vectors = contributions(comm.size, sum(counts), name)
            recv = Output(counts[comm.rank] * vectors[0].itemsize, "u1")
            send = put(vectors[comm.rank].view("u1"))
            comm.Reduce_scatter([send, name], [recv.array, name], counts, op.mpi or op)
            compare(recv, block(comm, counts, vectors, op), f"counts {counts}", as_dtype=vectors[0].dtype)


@pytest.mark.parametrize("comm", ["world", "reversed"], indirect=True)
def test_against_mpi(comm):
    """Integers, whose sums are the same in every order; counts as a NumPy array."""
    counts = np.arange(comm.size) * 3 % 4
    data = np.arange(counts.sum()) * 7 + comm.rank
    recv, wanted = Output(int(counts[comm.rank]), "i8"), np.empty(counts[comm.rank], "i8")
    comm.Reduce_scatter(put(data), recv.array, counts, MPI.MAX)
    MPI.Intracomm(comm).Reduce_scatter(data, wanted, counts, MPI.MAX)
    with comparing() as compare:
        compare(recv, wanted, f"counts {counts}")


def test_calls_back_to_back(comm):
    matrix = uneven_counts(layout_of(comm), 4, comm.size) * 3
    calls = [contributions(comm.size, sum(counts), call=call) for call, counts in enumerate(matrix)]
    sends = [put(vectors[comm.rank]) for vectors in calls]
    recvs = [Output(counts[comm.rank], "f4") for counts in matrix]
    for send, recv, counts in zip(sends, recvs, matrix, strict=True):
        comm.Reduce_scatter(send, recv.array, counts)
    with comparing() as compare:
        for call, (counts, vectors, recv) in enumerate(zip(matrix, calls, recvs, strict=True)):
            compare(recv, block(comm, counts, vectors), f"call {call}")
