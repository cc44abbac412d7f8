"""Gatherv: root gets all ranks' blocks, of any length and to any place; only root passes them."""

import numpy as np
import pytest
from mpi4py import MPI

from pyncclx.arrays.datatypes import TABLE
from support.arrays import Output, put, synchronize
from support.lease import layout_of
from support.reference import comparing, dtype_of, labels, skip_with_nccl, spread, uneven_counts


def gathered(counts, call: int = 0) -> np.ndarray:
    return np.concatenate([labels(rank, count, call) for rank, count in enumerate(counts)])


def test_counts_to_every_root(comm):
    with comparing() as compare:
        for call, counts in enumerate(uneven_counts(layout_of(comm), 8, comm.size)):
            send = put(labels(comm.rank, counts[comm.rank], call))
            for root in range(comm.size):
                recv = Output(sum(counts), "i8") if comm.rank == root else None
                comm.Gatherv(send, recv and [recv.array, counts], root)
                if recv:
                    compare(recv, gathered(counts, call), f"counts {counts} to root {root}")


@pytest.mark.parametrize("in_place", [False, True])
def test_displacements(comm, in_place):
    """Blocks in reversed order with gaps between them, which stay as they are."""
    with comparing() as compare:
        for call, counts in enumerate(uneven_counts(layout_of(comm), 8, comm.size)):
            root = call % comm.size
            displs = spread(counts)
            send = put(labels(comm.rank, counts[comm.rank]), offset=1)
            if comm.rank != root:
                comm.Gatherv(send, None, root)
                continue
            recv = Output(sum(counts) + 3 * comm.size, "i8")
            wanted = recv.read()
            for rank, (count, displ) in enumerate(zip(counts, displs, strict=True)):
                wanted[displ : displ + count] = labels(rank, count)
            if in_place:
                recv.array[displs[root] : displs[root] + counts[root]] = send
            comm.Gatherv(MPI.IN_PLACE if in_place else send, [recv.array, counts, displs, MPI.INT64_T], root)
            compare(recv, wanted, f"counts {counts} to root {root}")


@pytest.mark.parametrize("comm", ["world", "reversed"], indirect=True)
def test_against_mpi(comm):
    """Also mpi4py's short forms: one count for all, a division of the whole array, any displacement of nothing."""
    size = comm.size
    nothing = [0] * size
    with comparing() as compare:
        for count, form in (
            (7, lambda array: array),
            (3, lambda array: [array, 3]),
            (3, lambda array: [array, (3, 7)]),
            (3, lambda array: [array, [3] * size, [7 * rank for rank in range(size)], "d"]),
            (0, lambda array: [array, (nothing, [-1 - rank for rank in range(size)])]),
        ):
            data = np.random.default_rng(comm.rank).standard_normal(count)
            recv = Output(7 * size, "f8").fill(np.zeros(7 * size))
            wanted = np.zeros(7 * size)
            comm.Gatherv(put(data), form(recv.array))
            MPI.Intracomm(comm).Gatherv(data, form(wanted))
            compare(recv, wanted, f"{form(0)}")


@pytest.mark.parametrize("comm", ["reversed"], indirect=True)
@pytest.mark.parametrize("name", TABLE)
def test_datatypes(comm, name):
    itemsize = dtype_of(TABLE[name]).itemsize
    counts = [(3 * rank + 1) % 5 for rank in range(comm.size)]
    blocks = [np.random.default_rng(rank).integers(0, 256, n * itemsize).astype("u1") for rank, n in enumerate(counts)]
    recv = Output(sum(counts) * itemsize, "u1")
    comm.Gatherv([put(blocks[comm.rank]), name], [recv.array, counts, name])
    if comm.rank == 0:
        with comparing() as compare:
            compare(recv, np.concatenate(blocks), name)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("comm", ["world", "reversed"], indirect=True)
@pytest.mark.parametrize("size", ["packets", "chunks"])
def test_receive_count_too_small(comm, size):
    """MPI calls it an error; here nothing is written past the count, root's next call raises, and work goes on."""
    skip_with_nccl(comm)
    layout, last = layout_of(comm), comm.size - 1
    count = 8 if size == "packets" else layout.chunk_nbytes * layout.channels // 8 * 3
    recv = Output(count * comm.size, "i8")
    wanted = recv.read()
    for rank in range(comm.size):
        wanted[rank * count : (rank + 1) * count] = labels(rank, count)
    wanted[-3:] = Output(3, "i8").read()
    counts, displs = [*[count] * last, count - 3], [count * rank for rank in range(comm.size)]
    comm.Gatherv(put(labels(comm.rank, count)), [recv.array, (counts, displs)])
    synchronize()
    if comm.rank == 0:
        with pytest.raises(MPI.Exception, match=f"Gatherv: rank {last} sent {8 * count} bytes") as raised:
            comm.synchronize()
        assert raised.value.Get_error_class() == MPI.ERR_TRUNCATE
        with comparing() as compare:
            compare(recv, wanted, "all but what did not fit")
    comm.Gatherv(put(labels(comm.rank, count)), recv.array)
    comm.synchronize()
    if comm.rank == 0:
        with comparing() as compare:
            compare(recv, gathered([count] * comm.size), "afterwards")


def test_calls_back_to_back(comm):
    """Who is not root runs ahead."""
    matrix = uneven_counts(layout_of(comm), 8, comm.size) * 3
    sends = [put(labels(comm.rank, counts[comm.rank], call)) for call, counts in enumerate(matrix)]
    recvs = [Output(sum(counts), "i8") for counts in matrix]
    for call, (send, recv, counts) in enumerate(zip(sends, recvs, matrix, strict=True)):
        comm.Gatherv(send, [recv.array, counts], call % comm.size)
    with comparing() as compare:
        for call in range(comm.rank, len(matrix), comm.size):
            compare(recvs[call], gathered(matrix[call], call), f"call {call}")
