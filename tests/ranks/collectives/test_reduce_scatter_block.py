"""Reduce_scatter_block: rank r gets block r of the fold of all ranks' vectors."""

import math

import pytest
from mpi4py import MPI

from pyncclx.operators import ops
from support.arrays import Output, put
from support.lease import layout_of
from support.reference import block_counts, comparing, contributions, fold


def block(comm, vectors, op=ops.SUM):
    """What this rank gets."""
    count = vectors[0].size // comm.size
    return fold(op, [vector[comm.rank * count : (comm.rank + 1) * count] for vector in vectors])


def most(layout, algorithm):
    """The longest block for an algorithm, in bytes."""
    of_lines = (layout.line_nbytes - 16) * layout.channels
    return {"one_shot": layout.packet_nbytes, "one_shot_lines": of_lines}.get(algorithm, math.inf)


@pytest.mark.parametrize("algorithm", ["one_shot", "one_shot_lines", "two_shot", None])
def test_sizes(comm, algorithm):
    layout = layout_of(comm)
    with comparing() as compare:
        for call, count in enumerate(block_counts(layout, 4)):
            if count * 4 > most(layout, algorithm):
                continue
            vectors = contributions(comm.size, comm.size * count, call=call)
            recv = Output(count, "f4")
            comm.Reduce_scatter_block(put(vectors[comm.rank]), recv.array, algorithm=algorithm)
            compare(recv, block(comm, vectors), f"count {count}")


def test_in_place(comm):
    """As in MPI, recvbuf then has all blocks, and the result stands at its beginning."""
    with comparing() as compare:
        for count in block_counts(layout_of(comm), 4):
            vectors = contributions(comm.size, comm.size * count)
            recv = Output(comm.size * count, "f4").fill(vectors[comm.rank])
            comm.Reduce_scatter_block(MPI.IN_PLACE, recv.array)
            compare(put(recv.read()[:count]), block(comm, vectors), f"count {count}")
            assert not recv.damage()


@pytest.mark.parametrize("name", ["int8", "float32"])
def test_unaligned_slices(comm, name):
    with comparing() as compare:
        for count in (1, 15, 17, 1001, 30_011):
            vectors = contributions(comm.size, comm.size * count, name)
            recv = Output(count, name, offset=3)
            comm.Reduce_scatter_block(put(vectors[comm.rank], 1), recv.array)
            compare(recv, block(comm, vectors), f"count {count}")


@pytest.mark.parametrize("comm", ["reversed"], indirect=True)
@pytest.mark.parametrize(("name", "op"), [("complex128", "SUM"), ("float16", "AVG"), ("short_int", "MINLOC")])
def test_datatypes(comm, name, op):
    """Each with one operator; test_allreduce.py has them all, and the kernels share the fold."""
    op = ops.TABLE[op]
    with comparing() as compare:
        for count in (15, 2000):
            vectors = contributions(comm.size, comm.size * count, name)
            recv = Output(count * vectors[0].itemsize, "u1")
            comm.Reduce_scatter_block([put(vectors[comm.rank].view("u1")), name], [recv.array, name], op.mpi or op)
            compare(recv, block(comm, vectors, op), f"count {count}", as_dtype=vectors[0].dtype)


def test_calls_back_to_back(comm):
    layout = layout_of(comm)
    large = layout.chunk_nbytes * layout.channels // 4 * 3 + 1
    calls = [
        contributions(comm.size, comm.size * count, call=call) for call, count in enumerate((3, large, 40, 5, large, 1))
    ]
    sends = [put(vectors[comm.rank]) for vectors in calls]
    recvs = [Output(send.size // comm.size, "f4") for send in sends]
    for send, recv in zip(sends, recvs, strict=True):
        comm.Reduce_scatter_block(send, recv.array)
    with comparing() as compare:
        for call, (vectors, recv) in enumerate(zip(calls, recvs, strict=True)):
            compare(recv, block(comm, vectors), f"call {call}")
