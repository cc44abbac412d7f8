"""Alltoallw on device arrays: a datatype of its own for each rank, against MPI on host copies."""

import numpy as np
import pytest
from mpi4py import MPI

from support.arrays import Output, put
from support.columns import INT64, made, rows_of
from support.forms import FORMS, call
from support.reference import comparing, labels
from support.reversed_ranks import reversed_ranks

comm = pytest.fixture(reversed_ranks, scope="module")


def test_alltoallw(comm):
    """A matrix whose rows are divided unevenly among the ranks becomes one whose columns are."""
    size, me = comm.size, comm.rank
    heights, widths = [1 + 3 * (r % 2) for r in range(size)], [5 - r % 3 for r in range(size)]
    tops, lefts = np.cumsum([0, *heights]).tolist(), np.cumsum([0, *widths]).tolist()
    sends = [
        INT64.Create_subarray([heights[me], lefts[-1]], [heights[me], w], [0, x])
        for w, x in zip(widths, lefts, strict=False)
    ]
    recvs = [
        INT64.Create_subarray([tops[-1], widths[me]], [h, widths[me]], [y, 0])
        for h, y in zip(heights, tops, strict=False)
    ]
    types = [each.Commit() for each in (*sends, *recvs)]
    with comparing() as compare:
        for number, form in enumerate(FORMS):
            values = labels(me, heights[me] * lefts[-1], number)
            recv = Output((tops[-1], widths[me]), "i8")
            call(comm, form, "Alltoallw", [put(values), types[:size]], [recv.array, types[size:]])
            whole = np.concatenate(
                [labels(r, heights[r] * lefts[-1], number).reshape(heights[r], -1) for r in range(size)]
            )
            compare(recv, whole[:, lefts[me] : lefts[me + 1]], form)
    for each in types:
        each.Free()


@pytest.mark.parametrize("in_place", [False, True], ids=["two buffers", "in place"])
def test_alltoallw_of_all_kinds(comm, in_place):
    """Blocks of unlike datatypes, some empty, some in chunks, one after the other with displacements in bytes."""
    size, me = comm.size, comm.rank
    rows_of(comm)  # collective at the first use, and some ranks have no long columns
    kinds = ["contiguous", "pieces", "long columns", "irregular", "columns"]
    pairs = [kinds[(me + rank) % 5] for rank in range(size)]  # the same seen from both sides
    counts = [(me * rank + me + rank) % 3 for rank in range(size)]
    types, displs, end = [], [], 8
    for kind in pairs:
        datatype, span = made(comm, kind, 2)
        types.append(datatype)
        displs.append(end)
        end += 8 * span + 16
    values = labels(me, end // 8)
    recv = Output(end // 8, "i8")
    if in_place:
        recv.fill(values)
    expected = recv.read()
    MPI.Intracomm.Alltoallw(
        comm, MPI.IN_PLACE if in_place else [values, counts, displs, types], [expected, (counts, displs), types]
    )
    comm.Alltoallw(
        MPI.IN_PLACE if in_place else [put(values), (counts, displs), types], [recv.array, counts, displs, types]
    )
    with comparing() as compare:
        compare(recv, expected, "Alltoallw")
    for each in types:
        each.Free()


def test_alltoallw_without_copies(comm):
    """Contiguous blocks, which are moved from where they are, to a window."""
    size, me, most = comm.size, comm.rank, 2 * rows_of(comm)
    whole = comm.Alloc(size * most + 64, "i8")
    recv = Output(size * most, "i8", memory=whole.view("u1"))
    counts, places = [most - rank - me for rank in range(size)], [8 * most * rank for rank in range(size)]
    values = labels(me, size * most)
    comm.Alltoallw([put(values), counts, places, [INT64] * size], [recv.array, counts, places, [INT64] * size])
    expected = Output(size * most, "i8").read()
    MPI.Intracomm.Alltoallw(comm, [values, counts, places, [INT64] * size], [expected, counts, places, [INT64] * size])
    with comparing() as compare:
        compare(recv, expected, "windows")
