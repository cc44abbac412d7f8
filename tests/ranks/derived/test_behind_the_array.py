"""Arguments that reach from a view into the rest of its base array, as columns of a matrix do."""

import ctypes

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from support.arrays import Output, get, host_only, put
from support.everywhere import raises_everywhere
from support.forms import FORMS, call
from support.reference import comparing, labels
from support.reversed_ranks import reversed_ranks, ring

comm = pytest.fixture(reversed_ranks, scope="module")
ring = pytest.fixture(ring)
ROWS, COLUMNS = 4, 24
EACH = 5  # elements from the beginning of one block to the next


@pytest.fixture(scope="module")
def column():
    """The datatype of a column, as long as an element."""
    made = MPI.INT64_T.Create_vector(ROWS, 1, COLUMNS)
    resized = made.Create_resized(0, 8).Commit()
    yield resized
    for each in (made, resized):
        each.Free()


@pytest.mark.parametrize("name", ["Bcast", "Gather", "Scatter", "Allgather", "Alltoall", "Allgatherv", "Alltoallw"])
@pytest.mark.parametrize("form", FORMS)
def test_columns(comm, column, name, form):
    """They begin in the middle of the first row. Of other arrays, too: calls are cached."""
    size = comm.size

    def specs(send, receive):
        send, receive = send[0, 3:], receive[0, 1:]
        if name == "Bcast":
            return [[receive, 2, column], size - 1]
        if name == "Alltoallw":
            each = ([1] * size, [8 * rank for rank in range(size)]), [column] * size
            return [[send, *each], [receive, *each]]
        if name == "Allgatherv":
            counts = [1] * size, list(reversed(range(size)))
            return [[send, 1, column], [receive, counts, column]]
        return [[send, 1, column], [receive, 1, column]]

    with comparing() as compare:
        for number in range(3):
            values = labels(comm.rank, ROWS * COLUMNS, number)
            sent, received = put(values), Output(ROWS * COLUMNS, "i8")
            if name == "Bcast":
                received.fill(values)
            expected, shape = received.read(), (ROWS, COLUMNS)
            getattr(MPI.Intracomm, name)(comm, *specs(values.reshape(shape), expected.reshape(shape)))
            call(comm, form, name, *specs(sent.reshape(shape), received.array.reshape(shape)))
            compare(received, expected, f"{name}, {form}, {number}")


@pytest.mark.parametrize("name", ["Gatherv", "Scatterv", "Allgatherv", "Alltoallv", "Alltoallw"])
@pytest.mark.parametrize("form", FORMS)
def test_blocks(comm, name, form):
    """Displacements lead out of the view, which is shorter than one block."""
    size, root = comm.size, comm.size - 1
    displs = [EACH * rank for rank in range(size)]
    mine, all_of = (2, 0), ([2] * size, displs)
    sides = {"Gatherv": (mine, all_of), "Scatterv": (all_of, mine), "Allgatherv": (mine, all_of)}
    given, types, unit = sides.get(name, (all_of, all_of)), MPI.INT64_T, 1
    if name == "Alltoallw":
        types, unit = [MPI.INT64_T] * size, 8
    rooted = (root,) if name in ("Gatherv", "Scatterv") else ()

    def specs(send, receive):
        views = send[2:3], receive[3:4]
        return [
            [view, (counts, displs if displs == 0 else [unit * each for each in displs]), types]
            for view, (counts, displs) in zip(views, given, strict=True)
        ]

    with comparing() as compare:
        for number in range(3):
            values, received = labels(comm.rank, 4 + EACH * size, number), Output(4 + EACH * size, "i8")
            expected = received.read()
            getattr(MPI.Intracomm, name)(comm, *specs(values, expected), *rooted)
            call(comm, form, name, *specs(put(values), received.array), *rooted)
            compare(received, expected, f"{name}, {form}, {number}")


@pytest.mark.parametrize("form", ["Sendrecv", "Isend, Irecv", "persistent", "by bytes"])
def test_messages(comm, ring, column, form):
    above, below = ring
    shape = ROWS, COLUMNS

    def specs(sent, received):
        if form == "by bytes":
            return [sent[0, 3:5], 40, MPI.INT64_T], [received[0, 1:2], 40, MPI.INT64_T]
        return [sent[0], (2, 3), column], [received[0, 1:], 2, column]

    with comparing() as compare:
        for number in range(3):
            values, received = labels(comm.rank, ROWS * COLUMNS, number), Output(ROWS * COLUMNS, "i8")
            expected = received.read()
            own, theirs = specs(values.reshape(shape), expected.reshape(shape))
            MPI.Intracomm(comm).Sendrecv(own, above, recvbuf=theirs, source=below)
            own, theirs = specs(put(values).reshape(shape), received.array.reshape(shape))
            if form == "Isend, Irecv":
                pyncclx.Request.Waitall([comm.Irecv(theirs, below), comm.Isend(own, above)])
            elif form == "persistent":
                requests = [comm.Recv_init(theirs, below), comm.Send_init(own, above)]
                pyncclx.Prequest.Startall(requests)
                pyncclx.Request.Waitall(requests)
            else:
                comm.Sendrecv(own, above, recvbuf=theirs, source=below)
            compare(received, expected, f"{form}, {number}")


def test_origins_of_windows(comm, column, ring):
    above, below = ring
    values = labels(comm.rank, ROWS * COLUMNS)
    origin, exposed = put(values).reshape(ROWS, COLUMNS), comm.Alloc(ROWS, "i8")
    exposed[...] = 0
    window = pyncclx.Win.Create(exposed, 8, comm=comm)
    window.Fence()
    window.Put([origin[0, 5:], 1, column], above, [0, ROWS, MPI.INT64_T])
    window.Fence()
    np.testing.assert_array_equal(get(exposed), labels(below, ROWS * COLUMNS).reshape(ROWS, COLUMNS)[:, 5])
    window.Free()


def reaching_calls(comm, column):
    """Calls on a view of 8 elements that need more, by name."""
    size, one = comm.size, [1] * comm.size
    far = [8 + EACH * each for each in range(size)]
    pair = MPI.INT64_T.Create_contiguous(2).Commit()
    return {
        "count": lambda view: comm.Bcast([view, 9 + size, MPI.INT64_T]),
        "pairs": lambda view: comm.Bcast([view, 5 + size, pair]),
        "column": lambda view: comm.Bcast([view, 1, column]),
        "displacements": lambda view: comm.Allgatherv([view, 1, MPI.INT64_T], [view, one, far, MPI.INT64_T]),
        "in bytes": lambda view: comm.Alltoallw(
            [view, one, [0] * size, [MPI.INT64_T] * size], [view, one, [8 * each for each in far], [MPI.INT64_T] * size]
        ),
    }


@host_only  # on a GPU the base array's beginning is another one at each call
@pytest.mark.parametrize("name", ["count", "pairs", "column", "displacements", "in bytes"])
def test_other_arrays_without_room(comm, column, name):
    """Calls are cached; arrays without room at the same addresses and elsewhere are refused, and nothing is written."""
    reach = reaching_calls(comm, column)[name]
    whole = np.zeros(ROWS * COLUMNS * comm.size + 200, "i8")
    for begin in (0, 8, 16, 8):
        reach(whole[begin : begin + 8])
    whole[:] = 7
    comm.Barrier()
    # The first one is elsewhere, the second one where a call was served before.
    for memory in (np.full(8, 7), whole[8:16]):
        bare = np.frombuffer((ctypes.c_int64 * 8).from_address(memory.ctypes.data), "i8")
        for _ in range(2):
            with raises_everywhere(comm, ValueError, match="pass a larger array"):
                reach(bare)
    assert (whole == 7).all()
    comm.Barrier()


def test_messages_of_other_arrays_without_room(comm, ring):
    above, below = ring
    whole = put(np.arange(40))
    for begin in (0, 8, 16):
        requests = [comm.Irecv([put(np.zeros(20, "i8")), 20, MPI.INT64_T], below)]
        requests.append(comm.Isend([whole[begin : begin + 8], 20, MPI.INT64_T], above))
        pyncclx.Request.Waitall(requests)
    for _ in range(2):
        with raises_everywhere(comm, ValueError, match="pass a larger array"):
            comm.Isend([whole[24:32], 20, MPI.INT64_T], above)
        with raises_everywhere(comm, ValueError, match="pass a larger array"):
            comm.Isend([put(np.zeros(8, "i8")), 20, MPI.INT64_T], above)


@host_only
def test_views_of_torch(comm, column):
    torch = pytest.importorskip("torch")
    whole = torch.arange(ROWS * COLUMNS, dtype=torch.int64).reshape(ROWS, COLUMNS) + 1000 * comm.rank
    gathered = np.zeros((comm.size, ROWS), "i8")
    comm.Allgather([whole[0, 3:], 1, column], gathered)
    first = np.arange(ROWS) * COLUMNS + 3
    np.testing.assert_array_equal(gathered, [first + 1000 * rank for rank in range(comm.size)])
    for refused in (whole[1, 3:], whole[0, 3:].clone()):
        with raises_everywhere(comm, ValueError, match="pass a larger array"):
            comm.Allgather([refused, 1, column], gathered)
