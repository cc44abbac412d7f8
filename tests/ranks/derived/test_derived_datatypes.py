"""Derived datatypes on device arrays, against MPI on host copies; elements outside of a datatype stay as they are."""

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from support.arrays import HOST, Output, get, put, xp
from support.columns import INT64, KINDS, made
from support.everywhere import raises_everywhere
from support.forms import FORMS, call
from support.reference import comparing, labels
from support.reversed_ranks import reversed_ranks

comm = pytest.fixture(reversed_ranks, scope="module")


@pytest.mark.parametrize("name", ["Bcast", "Gather", "Scatter", "Allgather", "Alltoall"])
def test_collectives(comm, name):
    """Derived on both sides, in all forms."""
    size, root = comm.size, comm.size - 1
    rooted = (root,) if name in ("Bcast", "Gather", "Scatter") else ()
    with comparing() as compare:
        for number, kind in enumerate(KINDS):
            many = 2 * size
            datatype, span = made(comm, kind, many)
            values = labels(comm.rank, span, number)
            recv = Output(span, "i8").fill(values) if name == "Bcast" else Output(span, "i8")
            expected = recv.read()
            send = [] if name == "Bcast" else [values]
            specs = [[each, 2, datatype] for each in (*send, expected)]
            getattr(MPI.Intracomm, name)(comm, *specs, *rooted)
            specs = [[each, 2, datatype] for each in (*map(put, send), recv.array)]
            call(comm, FORMS[number % 3], name, *specs, *rooted)
            compare(recv, expected, kind)
            datatype.Free()


@pytest.mark.parametrize("name", ["Gatherv", "Scatterv", "Allgatherv", "Alltoallv"])
def test_vector_collectives(comm, name):
    """Counts and displacements in elements, some blocks empty, in any order, with gaps between them."""
    size, me, root = comm.size, comm.rank, comm.size // 2
    matrix = np.random.default_rng(size).integers(0, 3, (size, size))
    with comparing() as compare:
        for number, kind in enumerate(KINDS):
            many = 4 * size
            datatype, span = made(comm, kind, many)
            places = [4 * (size - 1 - rank) + 1 for rank in range(size)]
            counts = matrix[root].tolist()
            whole, mine = (counts, places), (counts[me], 1)
            values, recv = labels(me, span, number), Output(span, "i8")
            expected = recv.read()
            sides = {
                "Gatherv": (mine, whole if me == root else None),
                "Scatterv": (whole if me == root else None, mine),
                "Allgatherv": (mine, whole),
                "Alltoallv": ((matrix[me], places), (matrix[:, me], places)),
            }[name]
            rooted = (root,) if name in ("Gatherv", "Scatterv") else ()

            def specs(arrays, sides=sides, datatype=datatype):
                return [None if side is None else [a, side, datatype] for a, side in zip(arrays, sides, strict=True)]

            getattr(MPI.Intracomm, name)(comm, *specs((values, expected)), *rooted)
            call(comm, FORMS[number % 3], name, *specs((put(values), recv.array)), *rooted)
            compare(recv, expected, kind)
            datatype.Free()


@pytest.mark.parametrize("name", ["Gather", "Allgather", "Alltoall", "Allgatherv"])
def test_in_place(comm, name):
    size, root = comm.size, 0
    datatype, span = made(comm, "columns", 2 * size)
    values, recv = labels(comm.rank, span), Output(span, "i8").fill(labels(comm.rank, span))
    expected = recv.read()
    in_place = name != "Gather" or comm.rank == root
    rooted = (root,) if name == "Gather" else ()
    counts = [2] * size if name == "Allgatherv" else 2
    sendbuf = MPI.IN_PLACE if in_place else [values, 2, datatype]
    getattr(MPI.Intracomm, name)(comm, sendbuf, [expected, counts, datatype], *rooted)
    sendbuf = MPI.IN_PLACE if in_place else [put(values), 2, datatype]
    getattr(comm, name)(sendbuf, [recv.array, counts, datatype], *rooted)
    with comparing() as compare:
        compare(recv, expected, name)
    datatype.Free()


def test_other_datatypes_on_other_ranks(comm):
    """What counts is the elements' types, not how they lie: even ranks have columns, odd ones rows."""
    size, me, rows = comm.size, comm.rank, 6
    column = INT64.Create_vector(rows, 1, size).Create_resized(0, 8).Commit()
    values = labels(me, rows * size).reshape(rows, size)
    blocks = values.T if me % 2 == 0 else values.reshape(size, rows)  # what goes to each rank
    expected = np.stack([comm.alltoall(list(blocks))[rank] for rank in range(size)])
    with comparing() as compare:
        for name, count in (("Alltoall", 1), ("Alltoallv", [1] * size)):
            recv = Output((rows, size) if me % 2 == 0 else (size, rows), "i8")
            if me % 2 == 0:
                getattr(comm, name)([put(values), count, column], [recv.array, count, column])
            else:
                plain = rows if name == "Alltoall" else [rows] * size
                getattr(comm, name)([put(values), plain, INT64], [recv.array, plain, INT64])
            compare(recv, expected.T if me % 2 == 0 else expected, name)
        for root in range(size):
            buf = Output((rows, size), "i8").fill(values)
            comm.Bcast([buf.array, 1, column] if me % 2 == 0 else [buf.array, rows, INT64], root)
            sent = comm.bcast(values[:, 0] if me % 2 == 0 else values.reshape(-1)[:rows], root)
            wanted = values.copy()
            (wanted.T[0] if me % 2 == 0 else wanted.reshape(-1)[:rows])[:] = sent
            compare(buf, wanted, f"root {root}")
    column.Free()


def test_bad_input(comm):
    size = comm.size
    x, y = xp.zeros(8 * size + 8, "i8"), xp.zeros(8 * size, "i8")
    column = INT64.Create_vector(4, 1, 3).Commit()
    with raises_everywhere(comm, ValueError, match=r"Allgather: recvbuf has .* bytes, the message takes"):
        comm.Allgather([x, 1, column], [y, 2, column])
    with raises_everywhere(comm, ValueError, match=r"Bcast: buf has count -1"):
        comm.Bcast([x, -1, column])
    with raises_everywhere(comm, ValueError, match=r"Bcast: buf has 64.* not a multiple of the datatype's extent 80"):
        comm.Bcast([x[:8], column])
    if HOST:  # on a GPU the memory pool's may begin before the array
        with raises_everywhere(comm, ValueError, match="displacement -1"):
            comm.Bcast([x, (1, -1), column])
        with raises_everywhere(comm, ValueError, match=r"Alltoallw: recvbuf, block 0, has .* bytes, the message takes"):
            comm.Alltoallw([x, [INT64] * size], [y, ([1] * size, [-8] * size), [INT64] * size])
    with raises_everywhere(comm, ValueError, match=f"Alltoallw: sendbuf has 0 datatypes, expecting {size}"):
        comm.Alltoallw([x, []], [y, [INT64] * size])
    with raises_everywhere(comm, MPI.Exception, match="negative"):
        comm.Alltoallw([x, [INT64] * size], [y, ([-1] * size, [0] * size), [INT64] * size])
    with raises_everywhere(comm, pyncclx.NotSupported, match="derived"):
        comm.Allreduce([x, 1, column], [y, 1, column])
    with raises_everywhere(comm, pyncclx.NotSupported, match="derived"):
        comm.Alltoallv([x, xp.ones(size, "i8"), column], y, layout="packed")
    assert not get(y).any()
    column.Free()


def test_not_committed(comm):
    size, me = comm.size, comm.rank
    values = np.arange(12).reshape(4, 3) + 100 * me
    x, y = put(values), Output((4, 3), "i8")
    column = INT64.Create_vector(4, 1, 3)
    calls = (
        lambda: comm.Bcast([x, 1, column]),
        lambda: comm.Isend([x, 1, column], me),
        lambda: comm.Sendrecv([x, 4, INT64], me, 0, [y.array, 1, column], me, 0),
        lambda: comm.Recv_init([y.array, 1, column], me),
        lambda: comm.Alltoallw([x, [column] * size], [y.array, ([1] + [0] * (size - 1), [0] * size), [column] * size]),
    )
    for each in calls:
        with raises_everywhere(comm, MPI.Exception, match="not committed") as raised:
            each()
        assert raised.value.Get_error_class() == MPI.ERR_TYPE
    column.Commit()
    comm.Sendrecv([x, 1, column], (me + 1) % size, 0, [y.array, 1, column], (me - 1) % size, 0)
    assert (y.read()[:, 0] == np.arange(0, 12, 3) + 100 * ((me - 1) % size)).all()
    column.Free()


def test_how_it_runs(comm):
    assert comm.explain("Alltoallw", 1 << 20).startswith("native")
    assert comm.explain("Ialltoallw", 8).startswith("native")
    with comm.Create_cart([comm.size]) as topology:
        assert topology.explain("Neighbor_alltoallw").startswith("native")
