"""Allgatherv: every rank gets all ranks' blocks, of lengths that all ranks pass."""

import numpy as np
import pytest
from mpi4py import MPI

from pyncclx.arrays.datatypes import TABLE
from support.arrays import Output, put
from support.lease import layout_of
from support.reference import comparing, dtype_of, labels, spread, uneven_counts


def gathered(counts, call: int = 0) -> np.ndarray:
    return np.concatenate([labels(rank, count, call) for rank, count in enumerate(counts)])


def test_counts(comm):
    with comparing() as compare:
        for call, counts in enumerate(uneven_counts(layout_of(comm), 8, comm.size)):
            recv = Output(sum(counts), "i8")
            comm.Allgatherv(put(labels(comm.rank, counts[comm.rank], call)), [recv.array, counts])
            compare(recv, gathered(counts, call), f"counts {counts}")


@pytest.mark.parametrize("in_place", [False, True])
def test_displacements(comm, in_place):
    """Blocks in reversed order with gaps between them, which stay as they are; another distance on each rank."""
    me = comm.rank
    with comparing() as compare:
        for counts in uneven_counts(layout_of(comm), 8, comm.size):
            displs = [displ + me for displ in spread(counts)]
            recv = Output(sum(counts) + 3 * comm.size + me, "i8")
            wanted, send = recv.read(), put(labels(me, counts[me]))
            for rank, (count, displ) in enumerate(zip(counts, displs, strict=True)):
                wanted[displ : displ + count] = labels(rank, count)
            if in_place:
                recv.array[displs[me] : displs[me] + counts[me]] = send
            comm.Allgatherv(MPI.IN_PLACE if in_place else send, [recv.array, counts, displs, MPI.INT64_T])
            compare(recv, wanted, f"counts {counts}")


@pytest.mark.parametrize("comm", ["world", "reversed"], indirect=True)
def test_against_mpi(comm):
    """Also mpi4py's short forms: one count for all, a division of the whole array."""
    size = comm.size
    with comparing() as compare:
        for count, form in (
            (7, lambda array: array),
            (3, lambda array: [array, 3]),
            (3, lambda array: [array, (3, 7)]),
            (3, lambda array: [array, [3] * size, [7 * rank for rank in range(size)], "d"]),
        ):
            data = np.random.default_rng(comm.rank).standard_normal(count)
            recv = Output(7 * size, "f8").fill(np.zeros(7 * size))
            wanted = np.zeros(7 * size)
            comm.Allgatherv(put(data), form(recv.array))
            MPI.Intracomm(comm).Allgatherv(data, form(wanted))
            compare(recv, wanted, f"{form(0)}")


def test_unaligned_bytes(comm):
    with comparing() as compare:
        for counts in uneven_counts(layout_of(comm), 1, comm.size):
            blocks = [np.random.default_rng(rank).integers(0, 256, n).astype("u1") for rank, n in enumerate(counts)]
            recv = Output(sum(counts), "u1", offset=3)
            comm.Allgatherv(put(blocks[comm.rank], offset=comm.rank), [recv.array, counts])
            compare(recv, np.concatenate(blocks), f"counts {counts}")


@pytest.mark.parametrize("comm", ["reversed"], indirect=True)
@pytest.mark.parametrize("name", TABLE)
def test_datatypes(comm, name):
    itemsize = dtype_of(TABLE[name]).itemsize
    counts = [(3 * rank + 1) % 5 for rank in range(comm.size)]
    blocks = [np.random.default_rng(rank).integers(0, 256, n * itemsize).astype("u1") for rank, n in enumerate(counts)]
    recv = Output(sum(counts) * itemsize, "u1")
    comm.Allgatherv([put(blocks[comm.rank]), name], [recv.array, counts, name])
    with comparing() as compare:
        compare(recv, np.concatenate(blocks), name)


def test_calls_back_to_back(comm):
    matrix = uneven_counts(layout_of(comm), 8, comm.size) * 3
    sends = [put(labels(comm.rank, counts[comm.rank], call)) for call, counts in enumerate(matrix)]
    recvs = [Output(sum(counts), "i8") for counts in matrix]
    for send, recv, counts in zip(sends, recvs, matrix, strict=True):
        comm.Allgatherv(send, [recv.array, counts])
    with comparing() as compare:
        for call, recv in enumerate(recvs):
            compare(recv, gathered(matrix[call], call), f"call {call}")
