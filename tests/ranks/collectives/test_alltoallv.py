"""Alltoallv in MPI's form: counts and displacements on the host, in elements."""

import numpy as np
import pytest
from mpi4py import MPI

from pyncclx.arrays.datatypes import TABLE
from support.arrays import Output, get, put, synchronize
from support.everywhere import raises_everywhere
from support.lease import layout_of
from support.reference import comparing, dtype_of, labels, skip_with_nccl


def starts(counts):
    return np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(int).tolist()


def matrices(comm):
    """Element counts [sender, receiver]: nothing, packets, chunks, and both between different pairs."""
    layout, size = layout_of(comm), comm.size
    random = np.random.default_rng(size)
    slot = (layout.slot_nbytes - 16) // 8 * layout.channels
    large = layout.chunk_nbytes * layout.channels // 8
    choices = ([0], [0, 1, 15, 16, 17], [slot - 1, slot, slot + 1], [0, 1, large, 3 * large + 5])
    return [random.choice(each, (size, size)) for each in choices]


def expected(comm, matrix, call=0):
    """The blocks that this rank gets, one after the other."""
    me, blocks = comm.rank, []
    for source in range(comm.size):
        begin = matrix[source, :me].sum()
        blocks.append(labels(source, matrix[source].sum(), call)[begin : begin + matrix[source, me]])
    return np.concatenate(blocks)


def test_counts(comm):
    with comparing() as compare:
        for call, matrix in enumerate(matrices(comm)):
            send = put(labels(comm.rank, matrix[comm.rank].sum(), call))
            recv = Output(matrix[:, comm.rank].sum(), "i8")
            comm.Alltoallv([send, matrix[comm.rank]], [recv.array, matrix[:, comm.rank].tolist()])
            compare(recv, expected(comm, matrix, call), f"matrix {call}")


def test_displacements(comm):
    """Blocks with gaps between them, in reversed order; the gaps stay as they are."""
    size, me = comm.size, comm.rank
    matrix = np.random.default_rng(size).integers(0, 30, (size, size))
    places = [40 * (size - 1 - rank) + 3 for rank in range(size)]
    recv = Output(40 * size, "i8")
    comm.Alltoallv([put(labels(me, 40 * size)), (matrix[me], places)], [recv.array, matrix[:, me], places, MPI.INT64_T])
    wanted = Output(40 * size, "i8").read()
    for source in range(size):
        count = matrix[source, me]
        wanted[places[source] : places[source] + count] = labels(source, 40 * size)[places[me] : places[me] + count]
    with comparing() as compare:
        compare(recv, wanted, "blocks and gaps")


def test_in_place(comm):
    """Counts are symmetric then, and each block replaces the one that was sent from its place."""
    size, me = comm.size, comm.rank
    large = layout_of(comm).chunk_nbytes * layout_of(comm).channels // 8 + 1
    with comparing() as compare:
        for most in (20, 2 * large):
            matrix = np.random.default_rng(size).integers(0, most, (size, size))
            matrix = matrix + matrix.T
            recv = Output(matrix[me].sum(), "i8").fill(labels(me, matrix[me].sum()))
            comm.Alltoallv(MPI.IN_PLACE, [recv.array, matrix[me]])
            compare(recv, expected(comm, matrix), f"up to {most}")


@pytest.mark.parametrize("comm", ["reversed"], indirect=True)
@pytest.mark.parametrize("name", TABLE)
def test_datatypes(comm, name):
    size, me, itemsize = comm.size, comm.rank, dtype_of(TABLE[name]).itemsize
    matrix = np.arange(size * size).reshape(size, size) % 5
    sends = [np.random.default_rng(rank).integers(0, 256, matrix[rank].sum() * itemsize) for rank in range(size)]
    recv = Output(matrix[:, me].sum() * itemsize, "u1")
    comm.Alltoallv([put(sends[me].astype("u1")), matrix[me], name], [recv.array, matrix[:, me], name])
    wanted = [
        sends[source][begin * itemsize : (begin + matrix[source, me]) * itemsize]
        for source, begin in enumerate(matrix[:, :me].sum(axis=1))
    ]
    with comparing() as compare:
        compare(recv, np.concatenate(wanted).astype("u1"), name)


@pytest.mark.parametrize("comm", ["world", "reversed"], indirect=True)
def test_against_mpi(comm):
    """Also mpi4py's short forms: one count for all, a division of the whole array."""
    size = comm.size
    data = np.random.default_rng(comm.rank).standard_normal(7 * size)
    with comparing() as compare:
        for form in (
            lambda array: array,
            lambda array: [array, 3],
            lambda array: [array, (3, 7)],
            lambda array: [array, [3] * size, [7 * rank for rank in range(size)], MPI.DOUBLE],
        ):
            recv = Output(7 * size, "f8").fill(np.zeros(7 * size))
            wanted = np.zeros(7 * size)
            comm.Alltoallv(form(put(data)), form(recv.array))
            MPI.Intracomm(comm).Alltoallv(form(data), form(wanted))
            compare(recv, wanted, f"{form(0)}")


def test_elements_of_two_sizes(comm):
    """What a rank sends and what it receives need not be of one type, if each pair agrees."""
    types = [("f4", "f8")[rank % 2] for rank in range(comm.size)]  # of what a rank receives
    following, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    counts, recv_counts = np.zeros(comm.size, int), np.zeros(comm.size, int)
    counts[following] = recv_counts[before] = 5
    recv = Output(5, types[comm.rank])
    with comparing() as compare:
        comm.Alltoallv([put(np.arange(5, dtype=types[following]) + comm.rank), counts], [recv.array, recv_counts])
        compare(recv, np.arange(5, dtype=types[comm.rank]) + before, "from the rank before")


def test_receive_count_too_small(comm):
    """MPI calls it an error; here nothing is written past the count, and the next call raises."""
    skip_with_nccl(comm)
    size, me = comm.size, comm.rank
    recv = Output(4 * size, "i8")
    wanted = [3 if me == 0 and rank == size - 1 else 4 for rank in range(size)]
    comm.Alltoallv([put(labels(me, 4 * size)), 4], [recv.array, (wanted, [4 * rank for rank in range(size)])])
    synchronize()
    if me == 0:
        with pytest.raises(MPI.Exception, match=f"rank {size - 1} sent 32 bytes") as raised:
            comm.synchronize()
        assert raised.value.Get_error_class() == MPI.ERR_TRUNCATE
        assert get(recv.array).tolist()[:-1] == np.concatenate([labels(rank, 4) for rank in range(size)]).tolist()[:-1]
        assert get(recv.array)[-1:].tobytes() == b"\xa5" * 8
    comm.Barrier(device=True)
    comm.synchronize()


@pytest.mark.parametrize("comm", ["reversed"], indirect=True)
def test_arrays_with_gaps(comm):
    """Counts may have them, as for mpi4py; data may not, and the sentence says what helps."""
    size = comm.size
    numbers, rows = np.array([[1, 9], [1, 9]] * size), np.arange(4 * size, dtype="f4")
    recv = Output(size, "f4")
    for _ in range(2):
        comm.Alltoallv([put(rows), numbers[:size, 0], "f4"], [recv.array, numbers[:size, 0]])
    with comparing() as compare:
        compare(recv, np.full(size, comm.rank, "f4"), "counts with gaps")
    with raises_everywhere(comm, BufferError, "is not contiguous"):
        comm.Alltoallv([put(np.zeros(8 * size, "f4"))[::2], [1] * size], [recv.array, [1] * size])
    with raises_everywhere(comm, BufferError, r"recvbuf is not contiguous \(shape"):
        comm.Allreduce(put(rows), put(np.zeros(8 * size, "f4"))[::2])
