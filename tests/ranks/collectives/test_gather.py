"""Gather: root gets all ranks' blocks, in rank order; the other ranks' recvbuf is ignored."""

import numpy as np
import pytest
from mpi4py import MPI

from pyncclx.arrays.datatypes import TABLE
from support.arrays import Output, put
from support.lease import layout_of
from support.reference import block_counts, comparing, dtype_of, labels


def gathered(size: int, count: int, call: int = 0) -> np.ndarray:
    return np.concatenate([labels(rank, count, call) for rank in range(size)])


def test_sizes_to_every_root(comm):
    with comparing() as compare:
        for call, count in enumerate(block_counts(layout_of(comm), 8)):
            send = put(labels(comm.rank, count, call))
            for root in range(comm.size):
                recv = Output((comm.size, count), "i8") if comm.rank == root else None
                comm.Gather(send, recv and recv.array, root)
                if recv:
                    expected = gathered(comm.size, count, call).reshape(comm.size, count)
                    compare(recv, expected, f"count {count} to root {root}")
            compare(send, labels(comm.rank, count, call), f"count {count}: sendbuf")


@pytest.mark.parametrize("nothing", [MPI.IN_PLACE, None])
def test_in_place(comm, nothing):
    """Root's own block is there already."""
    with comparing() as compare:
        for count in block_counts(layout_of(comm), 8):
            root = count % comm.size
            if comm.rank == root:
                recv = Output(comm.size * count, "i8")
                recv.array[root * count : (root + 1) * count] = put(labels(root, count))
                comm.Gather(nothing, recv.array, root)
                compare(recv, gathered(comm.size, count), f"count {count} to root {root}")
            else:
                comm.Gather(put(labels(comm.rank, count)), None, root)


def test_recvbuf_is_ignored_at_other_ranks(comm):
    recv = Output(comm.size * 5, "i8")
    comm.Gather(put(labels(comm.rank, 5)), recv.array)
    comm.Gather(put(labels(comm.rank, 5)), recv.array if comm.rank == 0 else 5)
    with comparing() as compare:
        untouched = Output(comm.size * 5, "i8").read()
        compare(recv, gathered(comm.size, 5) if comm.rank == 0 else untouched, "recvbuf")


def test_unaligned_bytes(comm):
    with comparing() as compare:
        for count in block_counts(layout_of(comm), 1)[1:]:
            blocks = np.random.default_rng(count).integers(0, 256, (comm.size, count | 1)).astype("u1")
            for root in {0, comm.size - 1}:
                recv = Output(blocks.shape, "u1", offset=3) if comm.rank == root else None
                comm.Gather(put(blocks[comm.rank], offset=comm.rank), recv and recv.array, root=root)
                if recv:
                    compare(recv, blocks, f"{count | 1} bytes to root {root}")


@pytest.mark.parametrize("comm", ["reversed"], indirect=True)
@pytest.mark.parametrize("name", TABLE)
def test_datatypes(comm, name):
    nbytes = 5 * dtype_of(TABLE[name]).itemsize
    blocks = np.random.default_rng(3).integers(0, 256, (comm.size, nbytes)).astype("u1")
    recv = Output(blocks.size, "u1")
    comm.Gather([put(blocks[comm.rank]), name], [recv.array, name] if comm.rank == 0 else None)
    if comm.rank == 0:
        with comparing() as compare:
            compare(recv, blocks.reshape(-1), name)


def test_roots_take_turns_without_waiting(comm):
    """Who is not root runs ahead of the others; what it sends must not overtake what it sent before."""
    layout = layout_of(comm)
    large = layout.chunk_nbytes * layout.channels // 8 * 3 + 1
    sizes = [3, large, 40, 5, large, 1] * 3
    sends = [put(labels(comm.rank, count, call)) for call, count in enumerate(sizes)]
    recvs = [Output(comm.size * count, "i8") for count in sizes]
    for call, (send, recv) in enumerate(zip(sends, recvs, strict=True)):
        comm.Gather(send, recv.array, call % comm.size)
    with comparing() as compare:
        for call in range(comm.rank, len(sizes), comm.size):
            compare(recvs[call], gathered(comm.size, sizes[call], call), f"call {call}")
