"""Scatterv: each rank gets a block of root's data, of any length and from any place; only root passes them."""

import numpy as np
import pytest
from mpi4py import MPI

from pyncclx.arrays.datatypes import TABLE
from support.arrays import Output, put, synchronize
from support.lease import layout_of
from support.reference import comparing, dtype_of, labels, skip_with_nccl, spread, uneven_counts


def block(comm, root: int, counts, displs=None, call: int = 0) -> np.ndarray:
    """What this rank gets of root's labels."""
    begin = displs[comm.rank] if displs else sum(counts[: comm.rank])
    return labels(root, begin + counts[comm.rank], call)[begin:]


def test_counts_from_every_root(comm):
    with comparing() as compare:
        for call, counts in enumerate(uneven_counts(layout_of(comm), 8, comm.size)):
            for root in range(comm.size):
                send = [put(labels(root, sum(counts), call)), counts] if comm.rank == root else None
                recv = Output(counts[comm.rank], "i8")
                comm.Scatterv(send, recv.array, root)
                compare(recv, block(comm, root, counts, call=call), f"counts {counts} from root {root}")


@pytest.mark.parametrize("in_place", [False, True])
def test_displacements(comm, in_place):
    """Blocks in reversed order with gaps between them."""
    with comparing() as compare:
        for call, counts in enumerate(uneven_counts(layout_of(comm), 8, comm.size)):
            root = call % comm.size
            displs, whole = spread(counts), labels(root, sum(counts) + 3 * comm.size)
            send, recv = put(whole, offset=1), Output(counts[comm.rank], "i8")
            if comm.rank != root:
                comm.Scatterv(None, recv.array, root)
            else:
                comm.Scatterv([send, counts, displs, "i8"], MPI.IN_PLACE if in_place else recv.array, root)
                compare(send, whole, f"counts {counts}: sendbuf")
            if not (in_place and comm.rank == root):
                compare(recv, block(comm, root, counts, displs), f"counts {counts} from root {root}")


@pytest.mark.parametrize("comm", ["world", "reversed"], indirect=True)
def test_against_mpi(comm):
    """Also mpi4py's short forms: one count for all, a division of the whole array, one block for two ranks."""
    size = comm.size
    data = np.random.default_rng(comm.rank).standard_normal(7 * size)
    with comparing() as compare:
        for count, form in (
            (7, lambda array: array),
            (3, lambda array: [array, 3]),
            (3, lambda array: [array, (3, 7)]),
            (5, lambda array: [array, [5] * size, [2] * size, MPI.DOUBLE]),
        ):
            recv, wanted = Output(count, "f8"), np.zeros(count)
            comm.Scatterv(form(put(data)), recv.array)
            MPI.Intracomm(comm).Scatterv(form(data), wanted)
            compare(recv, wanted, f"{form(0)}")


@pytest.mark.parametrize("comm", ["reversed"], indirect=True)
@pytest.mark.parametrize("name", TABLE)
def test_datatypes(comm, name):
    itemsize = dtype_of(TABLE[name]).itemsize
    counts = [(3 * rank + 1) % 5 for rank in range(comm.size)]
    whole = np.random.default_rng(3).integers(0, 256, sum(counts) * itemsize).astype("u1")
    recv = Output(counts[comm.rank] * itemsize, "u1")
    comm.Scatterv([put(whole), counts, name], [recv.array, name])
    begin = sum(counts[: comm.rank]) * itemsize
    with comparing() as compare:
        compare(recv, whole[begin : begin + counts[comm.rank] * itemsize], name)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("comm", ["world", "reversed"], indirect=True)
@pytest.mark.parametrize("size", ["packets", "chunks"])
def test_receive_buffer_too_small(comm, size):
    """MPI calls it an error; nothing is written past the buffer, this rank's next call raises, and work goes on."""
    skip_with_nccl(comm)
    layout, last = layout_of(comm), comm.size - 1
    count = 8 if size == "packets" else layout.chunk_nbytes * layout.channels // 8 * 3
    room = count - 3 if comm.rank == last else count
    send, recv = put(labels(0, count * comm.size)), Output(room, "i8")
    comm.Scatterv(send, recv.array)
    synchronize()
    if comm.rank == last:
        text = f"Scatterv: rank 0 sent {8 * count} bytes, .* rank {last} .*{8 * room}"
        with pytest.raises(MPI.Exception, match=text) as raised:
            comm.synchronize()
        assert raised.value.Get_error_class() == MPI.ERR_TRUNCATE
    recvs = [recv, Output(count, "i8")]
    comm.Scatterv(send, recvs[1].array)
    comm.synchronize()
    with comparing() as compare:
        for recv in recvs:
            compare(recv, block(comm, 0, [count] * comm.size)[: recv.array.size], "what fits")


def test_calls_back_to_back(comm):
    """Root runs ahead."""
    matrix = uneven_counts(layout_of(comm), 8, comm.size) * 3
    sends = [put(labels(comm.rank, sum(counts), call)) for call, counts in enumerate(matrix)]
    recvs = [Output(counts[comm.rank], "i8") for counts in matrix]
    for call, (send, recv, counts) in enumerate(zip(sends, recvs, matrix, strict=True)):
        comm.Scatterv([send, counts], recv.array, call % comm.size)
    with comparing() as compare:
        for call, recv in enumerate(recvs):
            compare(recv, block(comm, call % comm.size, matrix[call], call=call), f"call {call}")
