"""Alltoall: block r of every rank's sendbuf goes to rank r."""

import numpy as np
import pytest
from mpi4py import MPI

from pyncclx.arrays.datatypes import TABLE
from support.arrays import Output, put
from support.lease import layout_of
from support.reference import block_counts, comparing, dtype_of, labels


def sent(comm, rank: int, count: int, call: int = 0) -> np.ndarray:
    return labels(rank, comm.size * count, call).reshape(comm.size, count)


def received(comm, count: int, call: int = 0) -> np.ndarray:
    return np.stack([sent(comm, rank, count, call)[comm.rank] for rank in range(comm.size)])


def test_sizes(comm):
    with comparing() as compare:
        for call, count in enumerate(block_counts(layout_of(comm), 8)):
            recv = Output((comm.size, count), "i8")
            comm.Alltoall(put(sent(comm, comm.rank, count, call)), recv.array)
            compare(recv, received(comm, count, call), f"count {count}")


def test_in_place(comm):
    with comparing() as compare:
        for count in block_counts(layout_of(comm), 8):
            recv = Output((comm.size, count), "i8", offset=1).fill(sent(comm, comm.rank, count))
            comm.Alltoall(MPI.IN_PLACE, recv.array)
            compare(recv, received(comm, count), f"count {count}")


def test_unaligned_bytes(comm):
    with comparing() as compare:
        for count in block_counts(layout_of(comm), 1)[1:]:
            shape = (comm.size, comm.size, count | 1)
            blocks = np.random.default_rng(count).integers(0, 256, shape).astype("u1")
            recv = Output(shape[1:], "u1", offset=7)
            comm.Alltoall(put(blocks[comm.rank], offset=comm.rank), recv.array)
            compare(recv, blocks[:, comm.rank], f"{count | 1} bytes")


@pytest.mark.parametrize("comm", ["reversed"], indirect=True)
@pytest.mark.parametrize("name", TABLE)
def test_datatypes(comm, name):
    nbytes = 3 * dtype_of(TABLE[name]).itemsize
    blocks = np.random.default_rng(3).integers(0, 256, (comm.size, comm.size, nbytes)).astype("u1")
    recv = Output((comm.size, nbytes), "u1")
    comm.Alltoall([put(blocks[comm.rank]), name], [recv.array, 3, name])
    with comparing() as compare:
        compare(recv, blocks[:, comm.rank], name)


@pytest.mark.parametrize("comm", ["world", "reversed"], indirect=True)
def test_against_mpi(comm):
    blocks = np.random.default_rng(comm.rank).standard_normal((comm.size, 77))
    recv, expected = Output(blocks.shape, "f8"), np.empty_like(blocks)
    comm.Alltoall(put(blocks), recv.array)
    MPI.Intracomm(comm).Alltoall(blocks, expected)
    with comparing() as compare:
        compare(recv, expected, "Alltoall")


def test_calls_back_to_back(comm):
    layout = layout_of(comm)
    large = layout.chunk_nbytes * layout.channels // 8 * 3 + 1
    sizes = [3, large, 40, 5, large, 1] * 3
    recvs = [Output((comm.size, count), "i8") for count in sizes]
    sends = [put(sent(comm, comm.rank, count, call)) for call, count in enumerate(sizes)]
    for send, recv in zip(sends, recvs, strict=True):
        comm.Alltoall(send, recv.array)
    with comparing() as compare:
        for call, recv in enumerate(recvs):
            compare(recv, received(comm, sizes[call], call), f"call {call}")
