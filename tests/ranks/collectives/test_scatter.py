"""Scatter: rank r gets block r of root's data; the other ranks' sendbuf is ignored."""

import numpy as np
import pytest
from mpi4py import MPI

from pyncclx.arrays.datatypes import TABLE
from support.arrays import Output, put
from support.lease import layout_of
from support.reference import block_counts, comparing, dtype_of, labels


def block(comm, root: int, count: int, call: int = 0) -> np.ndarray:
    """What this rank gets."""
    return labels(root, comm.size * count, call)[comm.rank * count : (comm.rank + 1) * count]


def test_sizes_from_every_root(comm):
    with comparing() as compare:
        for call, count in enumerate(block_counts(layout_of(comm), 8)):
            for root in range(comm.size):
                send = put(labels(root, comm.size * count, call)) if comm.rank == root else None
                recv = Output(count, "i8")
                comm.Scatter(send, recv.array, root)
                compare(recv, block(comm, root, count, call), f"count {count} from root {root}")


@pytest.mark.parametrize("nothing", [MPI.IN_PLACE, None])
def test_in_place(comm, nothing):
    """Root's own block stays where it is."""
    with comparing() as compare:
        for count in block_counts(layout_of(comm), 8):
            root = count % comm.size
            send, recv = put(labels(root, comm.size * count)), Output(count, "i8")
            if comm.rank == root:
                comm.Scatter(send, nothing, root)
                compare(send, labels(root, comm.size * count), f"count {count}: sendbuf")
            else:
                comm.Scatter(None, recv.array, root)
                compare(recv, block(comm, root, count), f"count {count} from root {root}")


def test_sendbuf_is_ignored_at_other_ranks(comm):
    recv = Output(5, "i8")
    comm.Scatter(put(labels(comm.rank, comm.size * 5)), recv.array)
    with comparing() as compare:
        compare(recv, block(comm, 0, 5), "sendbuf everywhere")
    comm.Scatter(put(labels(0, comm.size * 5, 1)) if comm.rank == 0 else 5, recv.array)
    with comparing() as compare:
        compare(recv, block(comm, 0, 5, 1), "no array elsewhere")


def test_unaligned_bytes(comm):
    with comparing() as compare:
        for count in block_counts(layout_of(comm), 1)[1:]:
            blocks = np.random.default_rng(count).integers(0, 256, (comm.size, count | 1)).astype("u1")
            for root in {0, comm.size - 1}:
                recv = Output(count | 1, "u1", offset=comm.rank)
                comm.Scatter(put(blocks, offset=3) if comm.rank == root else None, recv.array, root=root)
                compare(recv, blocks[comm.rank], f"{count | 1} bytes from root {root}")


@pytest.mark.parametrize("comm", ["reversed"], indirect=True)
@pytest.mark.parametrize("name", TABLE)
def test_datatypes(comm, name):
    nbytes = 5 * dtype_of(TABLE[name]).itemsize
    blocks = np.random.default_rng(3).integers(0, 256, (comm.size, nbytes)).astype("u1")
    recv = Output(nbytes, "u1")
    comm.Scatter([put(blocks), name] if comm.rank == 0 else None, [recv.array, name])
    with comparing() as compare:
        compare(recv, blocks[comm.rank], name)


def test_roots_take_turns_without_waiting(comm):
    """A root is not waited for and runs ahead of the others; its data must not overtake theirs."""
    layout = layout_of(comm)
    large = layout.chunk_nbytes * layout.channels // 8 * 3 + 1
    sizes = [3, large, 40, 5, large, 1] * 3
    sends = [put(labels(comm.rank, comm.size * count, call)) for call, count in enumerate(sizes)]
    recvs = [Output(count, "i8") for count in sizes]
    for call, (send, recv) in enumerate(zip(sends, recvs, strict=True)):
        comm.Scatter(send, recv.array, call % comm.size)
    with comparing() as compare:
        for call, recv in enumerate(recvs):
            compare(recv, block(comm, call % comm.size, sizes[call], call), f"call {call}")
