"""Allgather: every rank gets all ranks' blocks, in rank order."""

import numpy as np
import pytest
from mpi4py import MPI

from pyncclx.arrays.datatypes import TABLE
from support.arrays import Output, put
from support.lease import layout_of
from support.reference import block_counts, comparing, dtype_of, labels


def gathered(size: int, count: int, call: int = 0) -> np.ndarray:
    return np.concatenate([labels(rank, count, call) for rank in range(size)])


def test_sizes(comm):
    with comparing() as compare:
        for call, count in enumerate(block_counts(layout_of(comm), 8)):
            recv = Output((comm.size, count), "i8")
            comm.Allgather(put(labels(comm.rank, count, call)), recv.array)
            compare(recv, gathered(comm.size, count, call).reshape(comm.size, count), f"count {count}")


def test_in_place(comm):
    with comparing() as compare:
        for count in block_counts(layout_of(comm), 8):
            recv = Output(comm.size * count, "i8")
            recv.array[comm.rank * count : (comm.rank + 1) * count] = put(labels(comm.rank, count))
            comm.Allgather(MPI.IN_PLACE, recv.array)
            compare(recv, gathered(comm.size, count), f"count {count}")


def test_unaligned_bytes(comm):
    """Blocks of odd lengths: each rank's begins at another distance from a multiple of 16."""
    with comparing() as compare:
        for count in block_counts(layout_of(comm), 1)[1:]:
            blocks = np.random.default_rng(count).integers(0, 256, (comm.size, count | 1)).astype("u1")
            recv = Output(blocks.shape, "u1", offset=3)
            comm.Allgather(put(blocks[comm.rank], offset=comm.rank), recv.array)
            compare(recv, blocks, f"{count | 1} bytes")


@pytest.mark.parametrize("comm", ["reversed"], indirect=True)
@pytest.mark.parametrize("name", TABLE)
def test_datatypes(comm, name):
    nbytes = 5 * dtype_of(TABLE[name]).itemsize
    blocks = np.random.default_rng(3).integers(0, 256, (comm.size, nbytes)).astype("u1")
    recv = Output(blocks.size, "u1")
    comm.Allgather([put(blocks[comm.rank]), name], [recv.array, name])
    with comparing() as compare:
        compare(recv, blocks.reshape(-1), name)


def test_datatypes_may_differ_where_the_bytes_agree(comm):
    recv = Output(comm.size * 4, "f8")
    comm.Allgather([put(labels(comm.rank, 4)), MPI.INT64_T], [recv.array, 4, MPI.DOUBLE])
    with comparing() as compare:
        compare(recv, gathered(comm.size, 4), "int64 as float64", as_dtype="i8")


def test_calls_back_to_back(comm):
    layout = layout_of(comm)
    large = layout.chunk_nbytes * layout.channels // 8 * 3 + 1
    sizes = [3, large, 40, 5, large, 1] * 3
    recvs = [Output(comm.size * count, "i8") for count in sizes]
    sends = [put(labels(comm.rank, count, call)) for call, count in enumerate(sizes)]
    for send, recv in zip(sends, recvs, strict=True):
        comm.Allgather(send, recv.array)
    with comparing() as compare:
        for call, recv in enumerate(recvs):
            compare(recv, gathered(comm.size, sizes[call], call), f"call {call}")
