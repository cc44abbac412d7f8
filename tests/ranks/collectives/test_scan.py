"""Scan and Exscan: rank r gets the fold of the vectors of the ranks up to it, for Exscan below it."""

import numpy as np
import pytest
from mpi4py import MPI

from pyncclx.arrays.datatypes import TABLE
from pyncclx.operators import ops
from support import sample
from support.arrays import Output, put
from support.lease import layout_of
from support.reduction_pairs import FEW, PAIRS
from support.reference import comparing, contributions, counts, fold, fold_in_rank_order

OPERATIONS = ("Scan", "Exscan")


def prefix(operation, rank, vectors, before, op=ops.SUM):
    """What a rank gets; `before` is what its recvbuf holds, which Exscan leaves alone on rank 0."""
    folded = vectors[: rank + 1] if operation == "Scan" else vectors[:rank]
    return fold_in_rank_order(op, folded) if folded else before


@pytest.mark.parametrize("algorithm", ["one_shot", "two_shot", None])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_sizes(comm, operation, algorithm):
    layout = layout_of(comm)
    with comparing() as compare:
        for call, count in enumerate(counts(layout, 4)):
            if algorithm == "one_shot" and count * 4 > layout.packet_nbytes:
                continue
            vectors, recv = contributions(comm.size, count, call=call), Output(count, "f4")
            expected = prefix(operation, comm.rank, vectors, recv.read())
            send = put(vectors[comm.rank])
            getattr(comm, operation)(send, recv.array, algorithm=algorithm)
            compare(recv, expected, f"count {count}")
            compare(send, vectors[comm.rank], f"count {count}: sendbuf")


@pytest.mark.parametrize("nothing", [MPI.IN_PLACE, None])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_in_place_and_unaligned(comm, operation, nothing):
    with comparing() as compare:
        for count in counts(layout_of(comm), 4):
            vectors = contributions(comm.size, count)
            recv = Output(count, "f4", offset=1).fill(vectors[comm.rank])
            getattr(comm, operation)(nothing, recv.array)
            compare(recv, prefix(operation, comm.rank, vectors, vectors[comm.rank]), f"count {count}")


@pytest.mark.parametrize("comm", ["world"], indirect=True)
@pytest.mark.parametrize(("name", "op"), PAIRS if sample.ALL else FEW)
def test_operators_and_datatypes(comm, name, op):
    op = ops.TABLE[op]
    packets = layout_of(comm).packet_nbytes
    with comparing() as compare:
        for operation in OPERATIONS:
            for count in (15, packets // TABLE[name].itemsize + 3):
                vectors = contributions(comm.size, count, name, zeros=0.3)
                recv = Output(count * vectors[0].itemsize, "u1")
                before = recv.read().view(vectors[0].dtype)
                send = put(vectors[comm.rank].view("u1"))
                getattr(comm, operation)([send, name], [recv.array, name], op.mpi or op)
                expected = prefix(operation, comm.rank, vectors, before, op)
                compare(recv, expected, f"{operation} of {count}", as_dtype=vectors[0].dtype)


@pytest.mark.parametrize("comm", ["world", "reversed"], indirect=True)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_against_mpi(comm, operation):
    """Integers, whose sums are the same in every order."""
    data, recv = np.arange(20) * 7 + comm.rank, Output(20, "i8").fill(np.full(20, -1))
    wanted = np.full(20, -1)
    getattr(comm, operation)(put(data), recv.array, MPI.PROD)
    getattr(MPI.Intracomm(comm), operation)(data, wanted, MPI.PROD)
    with comparing() as compare:
        compare(recv, wanted, operation)


def test_calls_back_to_back(comm):
    """Rank 0 of a small one waits for no rank and runs ahead; between them operations in which all wait for all."""
    tile = layout_of(comm).chunk_nbytes * comm.size // 4
    sizes = (3, 2 * tile, 4, 100, tile, 5) * 3
    calls = [contributions(comm.size, count, call=call) for call, count in enumerate(sizes)]
    sends, recvs = [put(vectors[comm.rank]) for vectors in calls], [Output(vectors[0].size, "f4") for vectors in calls]
    methods = [OPERATIONS[call % 2] if call % 5 else "Allreduce" for call in range(len(calls))]
    wanted = [
        fold(ops.SUM, vectors) if method == "Allreduce" else prefix(method, comm.rank, vectors, recv.read())
        for method, vectors, recv in zip(methods, calls, recvs, strict=True)
    ]
    for method, send, recv in zip(methods, sends, recvs, strict=True):
        getattr(comm, method)(send, recv.array)
    with comparing() as compare:
        for call, recv in enumerate(recvs):
            compare(recv, wanted[call], f"call {call}, {methods[call]}")
