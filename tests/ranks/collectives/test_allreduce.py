"""Allreduce: the fold of all ranks' vectors, the same bits as NumPy's in rank order, on every rank."""

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx.arrays.datatypes import TABLE
from pyncclx.collectives.algorithms import half_of_lines
from pyncclx.operators import ops
from support.arrays import HOST, Output, put, xp
from support.everywhere import raises_everywhere
from support.lease import layout_of, set_epochs
from support.reduction_pairs import PAIRS
from support.reference import comparing, contributions, counts, dtype_of, fold, named

one_communicator = pytest.mark.parametrize("comm", ["reversed"], indirect=True)


@pytest.mark.parametrize("algorithm", ["one_shot", "two_shot_lines", "two_shot", None])
def test_sizes(comm, algorithm):
    with comparing() as compare:
        for call, count in enumerate(counts(layout_of(comm), 4)):
            if algorithm and algorithm != "two_shot" and count * 4 > most(comm, algorithm):
                with raises_everywhere(comm, ValueError, "moves at most"):
                    comm.Allreduce(put(np.zeros(count, "f4")), xp.empty(count, "f4"), algorithm=algorithm)
                continue
            vectors = contributions(comm.size, count, call=call)
            recv = Output(count, "f4")
            comm.Allreduce(put(vectors[comm.rank]), recv.array, algorithm=algorithm)
            compare(recv, fold(ops.SUM, vectors), f"count {count}")


def most(comm, algorithm):
    """The longest vector that goes as packets, or as lines, in bytes."""
    layout = layout_of(comm)
    if algorithm == "one_shot":
        return layout.packet_nbytes
    return max(0, half_of_lines(layout) - 32) * layout.size * layout.channels


@pytest.mark.parametrize("algorithm", ["two_shot_lines", "two_shot"])
def test_lengths_around_the_limits_of_packets(comm, algorithm):
    """Every remainder of a pack and of a shard, up to the last vector that fits."""
    longest = most(comm, algorithm)
    if longest == 0:
        pytest.skip("this communicator's lease has no room for lines")
    with comparing() as compare:
        for count in [*range(1, min(70, longest), 3), *range(max(1, longest - 40), longest + 1, 7)]:
            vectors = contributions(comm.size, count, "int8")
            recv = Output(count, "int8")
            comm.Allreduce(put(vectors[comm.rank]), recv.array, algorithm=algorithm)
            compare(recv, fold(ops.SUM, vectors), f"count {count}")


@pytest.mark.parametrize("name", ["int8", "float32"])
def test_unaligned_slices(comm, name):
    itemsize = TABLE[name].itemsize
    with comparing() as compare:
        for count in counts(layout_of(comm), itemsize)[1:]:
            vectors = contributions(comm.size, count, name)
            for send_offset, recv_offset in ((1, 0), (0, 1), (1, 3)):
                recv = Output(count, name, offset=recv_offset)
                comm.Allreduce(put(vectors[comm.rank], send_offset), recv.array)
                compare(recv, fold(ops.SUM, vectors), f"count {count} offsets {send_offset} {recv_offset}")


def test_in_place(comm):
    with comparing() as compare:
        for count in counts(layout_of(comm), 4):
            vectors = contributions(comm.size, count)
            recv = Output(count, "f4", offset=1).fill(vectors[comm.rank])
            comm.Allreduce(MPI.IN_PLACE, recv.array)
            compare(recv, fold(ops.SUM, vectors), f"count {count}")


@one_communicator
@pytest.mark.parametrize(("name", "op"), PAIRS, ids=lambda value: value)
def test_datatype_and_operator(comm, name, op):
    op, dtype = ops.TABLE[op], dtype_of(TABLE[name])
    zeros = 0.3 if op.name.startswith("L") else 0.0
    small = min(37, layout_of(comm).packet_nbytes // dtype.itemsize)
    with comparing() as compare:
        for count, algorithm in ((small, "one_shot"), (small, "two_shot"), (1037, "two_shot")):
            vectors = contributions(comm.size, count, name, zeros=zeros)
            recv = Output(count * dtype.itemsize, "u1")
            send = put(vectors[comm.rank].view("u1"))
            comm.Allreduce([send, name], [recv.array, name], op.mpi or op, algorithm=named(algorithm))
            compare(recv, fold(op, vectors), f"count {count}, {algorithm}", as_dtype=dtype)


@one_communicator
def test_against_mpi(comm):
    """Where MPI promises a result: integers, whatever the order."""
    vectors = contributions(comm.size, 1000, "int64")
    with comparing() as compare:
        for op in (MPI.SUM, MPI.MAX, MPI.BXOR) if HOST else (MPI.SUM,):
            recv, expected = Output(1000, "i8"), np.empty(1000, "i8")
            comm.Allreduce(put(vectors[comm.rank]), recv.array, op)
            MPI.Intracomm(comm).Allreduce(vectors[comm.rank], expected, op)
            compare(recv, expected, str(op))


def test_calls_back_to_back(comm):
    """Nothing waits between the calls; packets and chunks take turns."""
    tile = layout_of(comm).chunk_nbytes * comm.size // 4
    calls = [contributions(comm.size, count, call=call) for call, count in enumerate((3, tile, 4, 5, 2 * tile, 1) * 3)]
    sends = [put(vectors[comm.rank]) for vectors in calls]
    recvs = [Output(send.size, "f4") for send in sends]
    for send, recv in zip(sends, recvs, strict=True):
        comm.Allreduce(send, recv.array)
    with comparing() as compare:
        for call, (vectors, recv) in enumerate(zip(calls, recvs, strict=True)):
            compare(recv, fold(ops.SUM, vectors), f"call {call}")


@one_communicator
def test_thousand_calls(comm):
    """Each call takes the last one's result; a stale or early packet would show in the end."""
    value = xp.full(33, comm.rank + 1, "i8")
    for _ in range(1000):
        comm.Allreduce(MPI.IN_PLACE, value, MPI.MAX)
        value += comm.rank + 1
    comm.Allreduce(MPI.IN_PLACE, value, MPI.MAX)
    with comparing() as compare:
        compare(value, np.full(33, 1001 * comm.size, "i8"), "call 1000")


@pytest.mark.one_node
@pytest.mark.parametrize("before", [1, 2, 3, 4, 5])
def test_epochs_wrap_around(before):
    """The count of operations goes past 2^32, in packets and in chunks."""
    comm = pyncclx.Communicator().Dup()
    tile = layout_of(comm).chunk_nbytes * comm.size * layout_of(comm).channels // 4
    comm.Allreduce(put(np.ones(5, "f4")), Output(5, "f4").array)
    set_epochs(comm, 2**32 - before)
    with comparing() as compare:
        for call, count in enumerate((5, 2 * tile, 100, 7, 2 * tile, 2 * tile, 100, 100)):
            vectors = contributions(comm.size, count, call=call)
            recv = Output(count, "f4")
            comm.Allreduce(put(vectors[comm.rank]), recv.array)
            compare(recv, fold(ops.SUM, vectors), f"call {call}")
    comm.Free()
