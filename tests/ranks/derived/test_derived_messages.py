"""Messages of derived datatypes: packed by the sender's stream, unpacked by the receiver's."""

import pytest
from mpi4py import MPI

import pyncclx
from support.arrays import Output, get, put
from support.reference import comparing, labels
from support.reversed_ranks import reversed_ranks, ring

INT64 = MPI.INT64_T
ROWS = (3, 700, 9000)  # the first goes with its envelope or is copied on the way, the last is offered
comm = pytest.fixture(reversed_ranks, scope="module")
ring = pytest.fixture(ring)


@pytest.fixture(params=ROWS)
def column(request):
    datatype = INT64.Create_vector(request.param, 1, 4).Create_resized(0, 8).Commit()
    yield datatype
    datatype.Free()


def matrix(rank, column, call=0):
    rows = column.Get_size() // 8
    return labels(rank, 4 * rows, call).reshape(rows, 4)


def poisoned(column):
    return Output((column.Get_size() // 8, 4), "i8")


def test_columns(comm, ring, column):
    """The second column becomes the last, three times: the first messages between two ranks go through MPI."""
    above, below = ring
    with comparing() as compare:
        for call in range(3):
            x, y = put(matrix(comm.rank, column, call)), poisoned(column)
            expected = y.read()
            expected[:, 3] = matrix(below, column, call)[:, 1]
            receive = comm.Irecv([y.array, (1, 3), column], below)
            send = comm.Isend([x, (1, 1), column], above)
            pyncclx.Request.Waitall([send, receive])
            compare(y, expected, f"Isend, Irecv, {call}")
            y.poison()
            status = MPI.Status()
            comm.Sendrecv([x, (1, 1), column], above, 5, [y.array, (1, 3), column], below, 5, status)
            compare(y, expected, f"Sendrecv, {call}")
            assert (status.Get_count(column), status.Get_count(INT64), status.tag) == (1, column.Get_size() // 8, 5)


def test_in_place(comm, ring, column):
    above, below = ring
    x = poisoned(column).fill(matrix(comm.rank, column))
    comm.Sendrecv_replace([x.array, (2, 1), column], above, source=below)
    expected = matrix(comm.rank, column)
    expected[:, 1:3] = matrix(below, column)[:, 1:3]
    with comparing() as compare:
        compare(x, expected, "Sendrecv_replace")


def test_blocking(comm, ring, column):
    """Between pairs, to and fro; a column meets a row."""
    peer = comm.rank ^ 1
    if peer >= comm.size:
        return
    x, row = put(matrix(comm.rank, column)), Output(column.Get_size() // 8, "i8")
    with comparing() as compare:
        for sender in (0, 1):
            if comm.rank % 2 == sender:
                comm.Send([x, (1, 2), column], peer)
            else:
                comm.Recv(row.array, peer)
                compare(row, matrix(peer, column)[:, 2], f"{sender}")


def test_shorter_than_the_buffer(comm, ring, column):
    """What has come is taken to its place, and no more; it may end inside of an element."""
    above, below = ring
    y, rows = poisoned(column), column.Get_size() // 8
    length = rows + rows // 2
    expected = y.read()
    sent = labels(below, length)
    expected[:, 0] = sent[:rows]
    expected[: rows // 2, 1] = sent[rows:]
    request, status = comm.Isend(put(labels(comm.rank, length)), above), MPI.Status()
    comm.Recv([y.array, 3, column], below, status=status)
    request.Wait()
    assert status.Get_elements(INT64) == length
    with comparing() as compare:
        compare(y, expected, "one and a half columns")


def test_too_long(comm, ring, column):
    """The error that MPI gives, and nothing is unpacked."""
    above, below = ring
    y = poisoned(column)
    request = comm.Isend(put(matrix(comm.rank, column)), above)
    with pytest.raises(MPI.Exception) as raised:
        comm.Recv([y.array, 1, column], below)
    assert raised.value.Get_error_class() == MPI.ERR_TRUNCATE
    request.Wait()
    assert (get(y.array).view("u1") == 0xA5).all()


def test_matched_probe_and_contiguous(comm, ring):
    above, below = ring
    three = INT64.Create_contiguous(3).Commit()
    y = Output(9, "i8")
    expected = y.read()
    expected[3:9] = labels(below, 9)[:6]
    request = comm.Isend([put(labels(comm.rank, 9)), 2, three], above)
    comm.Mprobe(below).Recv([y.array, (2, 1), three])
    request.Wait()
    with comparing() as compare:
        compare(y, expected, "contiguous")
    three.Free()
