"""Repeated calls are launched without checking their arguments again: when that is so, and when not."""

import gc
import weakref

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx import CollectiveMismatch
from pyncclx.launch import later, launched, run
from pyncclx.operators import ops
from pyncclx.team.state import state_of
from support.arrays import HOST, get, put, xp
from support.reference import fold

SIZE = MPI.COMM_WORLD.size


@pytest.fixture(scope="module")
def comm():
    with pyncclx.Communicator(MPI.COMM_WORLD.Dup()) as comm:
        yield comm


def numbers(rank, count, dtype="f4"):
    return (np.arange(count) % 50 + rank).astype(dtype)


def check_sum(comm, send, recv, op=MPI.SUM, reference=ops.SUM):
    vectors = [numbers(rank, send.size, send.dtype) for rank in range(comm.size)]
    send[...] = put(vectors[comm.rank])
    comm.Allreduce(send, recv, op)
    np.testing.assert_array_equal(get(recv), fold(reference, vectors))


def refuse(*args, **kwargs):
    raise AssertionError("the arguments were looked at")


def test_the_second_call_is_a_look_up(comm, monkeypatch):
    send, recv = xp.empty(99, "f4"), xp.empty(99, "f4")
    rows, counts, received = xp.ones((comm.size, 3), "f4"), xp.ones(comm.size, "i8"), xp.zeros(comm.size, "i8")
    blocks = xp.empty((comm.size, 3), "f4")
    check_sum(comm, send, recv)  # makes the team
    for turn in range(2):
        check_sum(comm, send, recv)
        comm.Allgather([rows[0], MPI.FLOAT], blocks)
        # On the host device the counts are NumPy's, whose values are a part of the key: they must be as before.
        received[...] = 0
        comm.Alltoallv([rows, counts], [blocks, received], layout="packed")
        assert get(received).tolist() == [1] * comm.size
        if turn == 0:
            monkeypatch.setattr(run, "enqueue", refuse)
    with pytest.raises(AssertionError):
        comm.Allreduce(send, recv, MPI.MAX)


def test_a_nonblocking_call_that_came_before_is_a_look_up(comm, monkeypatch):
    rows = 3
    send, recv, reduced = xp.empty(rows, "i4"), xp.empty((comm.size, rows), "i4"), xp.empty(rows, "i4")
    column = MPI.INT.Create_vector(rows, 1, 2).Commit()
    every_other = xp.empty((rows, 2), "i4")
    for turn in range(6):
        values = [numbers(rank, rows, "i4") + 10 * turn for rank in range(comm.size)]
        root = turn % 2 * (comm.size - 1)
        send[...], recv[...], reduced[...] = put(values[comm.rank]), -1, -1
        every_other[...] = put(np.repeat(values[comm.rank], 2).reshape(rows, 2))
        with monkeypatch.context() as patch:
            if turn >= 4:  # the first call with a datatype reads what it is
                patch.setattr(launched, "enqueue", refuse)
                patch.setattr(later, "enqueue", refuse)
            requests = [
                comm.Iallgather(send, recvbuf=recv),
                comm.Iallreduce(send, reduced, op=MPI.MAX),
                comm.Ibcast([every_other, 1, column], root=root),
                comm.Ibarrier(),
            ]
            pyncclx.Request.Waitall(requests)
        assert get(recv).tolist() == [each.tolist() for each in values]
        assert get(reduced).tolist() == np.max(values, axis=0).tolist()
        assert get(every_other).tolist() == np.stack([values[root], values[comm.rank]], axis=1).tolist()
    column.Free()
    monkeypatch.setattr(launched, "enqueue", refuse)
    monkeypatch.setattr(later, "enqueue", refuse)
    with pytest.raises(AssertionError):
        comm.Iallreduce(send, reduced, op=MPI.MIN).Wait()


def test_a_nonblocking_call_that_came_before_runs_beside_the_stream(comm, monkeypatch):
    send, recv, streams = xp.ones(5, "f4"), xp.empty(5, "f4"), []
    comm.Allreduce(send, recv)
    device = state_of(comm).team.device
    launch = device.launch

    def noting(function, grid, threads, parameters, stream, *early):
        streams.append(stream)
        launch(function, grid, threads, parameters, stream, *early)

    monkeypatch.setattr(device, "launch", noting)
    for _ in range(3):
        comm.Iallreduce(send, recv).Wait()
    comm.Allreduce(send, recv)
    first, second, third, blocking = streams
    assert first is second is third
    assert first is not blocking


def test_nonblocking_calls_with_keywords(comm):
    blocks = xp.zeros((comm.size, 2), "i4")
    for _ in range(2):
        mine = xp.zeros(2, "i4")
        blocks[...] = put(np.arange(2 * comm.size, dtype="i4").reshape(comm.size, 2) + 100 * comm.rank)
        comm.Iscatter(blocks, recvbuf=mine, root=0).Wait()
        assert get(mine).tolist() == [2 * comm.rank, 2 * comm.rank + 1]
        comm.Iscatter(recvbuf=blocks[comm.rank], sendbuf=blocks, root=comm.size - 1).Wait()
        first = 100 * (comm.size - 1) + 2 * comm.rank
        assert get(blocks[comm.rank]).tolist() == [first, first + 1]


def test_arrays_of_nonblocking_calls_are_held_until_their_end(comm):
    send, recv = xp.ones(10, "f4"), xp.empty(10, "f4")
    for _ in range(3):
        spec = [send, MPI.FLOAT]
        request = comm.Iallreduce(spec, recv)
        spec.clear()
        held = weakref.ref(send)
        del send
        gc.collect()
        assert held() is not None
        send = held()
        request.Wait()
        assert get(recv).tolist() == [comm.size] * 10
    del send
    gc.collect()
    assert held() is None


def test_other_arrays_in_the_same_memory(comm):
    send, recv = xp.empty(512, "u1"), xp.empty(512, "u1")
    for _ in range(2):
        for dtype in ("f4", "i4"):
            for nbytes in (512, 8):
                check_sum(comm, send[:nbytes].view(dtype), recv[:nbytes].view(dtype))
        check_sum(comm, send.view("f4"), recv.view("f4"), MPI.MAX, ops.MAX)


def test_gaps_in_the_same_memory(comm):
    square = xp.ones((4, 4), "f4")
    for _ in range(2):
        comm.Allreduce(MPI.IN_PLACE, square[:2])
        with pytest.raises(BufferError, match="not contiguous"):
            comm.Allreduce(MPI.IN_PLACE, square[:, :2])
        with pytest.raises(ValueError, match="mismatch"):
            comm.Allreduce(square[:1], square[1:])
        with pytest.raises(MPI.Exception):
            comm.Allreduce(MPI.IN_PLACE, square[:2], MPI.BAND)


def test_lists_that_change(comm):
    size = comm.size
    counts, displs = np.full(size, 1), [2 * rank for rank in range(size)]
    recv = xp.zeros(2 * size, "i4")
    for turn in range(3):
        counts[:] = 1 + turn % 2
        displs[0], displs[-1] = (displs[-1], displs[0]) if turn == 2 else (displs[0], displs[-1])
        recv[...] = 0
        comm.Allgatherv(put(np.full(counts[0], comm.rank + 1, "i4")), [recv, (counts, displs)])
        expected = np.zeros(2 * size, "i4")
        for rank in range(size):
            expected[displs[rank] : displs[rank] + counts[rank]] = rank + 1
        np.testing.assert_array_equal(get(recv), expected)


def test_counts_that_change_where_they_are(comm):
    size, me = comm.size, comm.rank
    counts, received, displs = np.zeros(size, "i8"), np.zeros(size, "i8"), [2 * rank for rank in range(size)]
    send, recv = put(np.full(2 * size, me + 1, "i4")), xp.zeros(2 * size, "i4")
    for turn in range(3):
        counts[:] = 1 + (np.arange(size) + turn) % 2
        received[:] = counts[me]
        recv[...] = 0
        comm.Alltoallv([send, (counts, displs)], [recv, (received, displs)])
        expected = [[rank + 1, (rank + 1) * (counts[me] - 1)] for rank in range(size)]
        assert get(recv).reshape(size, 2).tolist() == expected


def test_an_algorithm_that_does_not_exist_after_one_that_does(comm):
    send, recv = xp.ones(10, "f4"), xp.ones(10, "f4")
    for _ in range(2):
        comm.Allreduce(send, recv, algorithm="one_shot")
    with pytest.raises(ValueError, match="'magic'"):
        comm.Allreduce(send, recv, algorithm="magic")


def test_rows_of_another_length(comm):
    """An array may be given another shape where it is."""
    size = comm.size
    send, recv = put(np.arange(4 * size, dtype="f4")), xp.empty(4 * size, "f4")
    received = xp.empty(size, "i8")
    for length in (1, 2, 4, 1):
        rows = 4 // length
        send.shape = recv.shape = (size * rows, length)
        counts = put(np.full(size, rows))
        comm.Alltoallv([send, counts], [recv, received], layout="packed")
        assert get(received).tolist() == [rows] * size
        np.testing.assert_array_equal(get(recv).reshape(size, 4), [np.arange(4) + 4 * comm.rank] * size)


def columns(comm, first, kind, place):
    """Two columns of a matrix of 6 rows and 4 columns for each rank, as a datatype of floats."""
    width = 4 * comm.size
    if kind == "regular":
        return MPI.FLOAT.Create_vector(6, 2, width).Create_hindexed_block(1, [4 * first]).Commit()
    rows = [row * width + first + row % 2 for row in range(6)]  # in a table in device memory, if they are many
    rows += [6 * width + 3 * (each * comm.size + place) + each % 2 for each in range(54)]
    return MPI.FLOAT.Create_indexed([2] * 60, rows).Commit()


@pytest.mark.parametrize("kind", ["regular", "irregular"])
def test_derived_datatypes(comm, kind, monkeypatch):
    """The second call with the same datatypes is a look-up, the first with others of the same handles is none."""
    length = 6 * 4 * comm.size + 3 * 54 * comm.size + 2
    send, recv = xp.empty(length, "f4"), xp.empty(length, "f4")

    def exchange(first, turn):
        starts = [(first + 4 * rank) % (4 * comm.size - 2) for rank in range(comm.size)]
        types = [columns(comm, start, kind, place) for place, start in enumerate(starts)]
        arguments = [[1] * comm.size, [0] * comm.size, types]
        for again in range(3):
            values = numbers(comm.rank, length) + 7 * turn + again
            send[...], recv[...] = put(values), -1
            expected = np.full(length, -1, "f4")
            MPI.Intracomm.Alltoallw(comm, [values, *arguments], [expected, *arguments])
            with monkeypatch.context() as patch:
                if again == 2:
                    patch.setattr(run, "enqueue", refuse)
                comm.Alltoallw([send, *arguments], [recv, *arguments])
            np.testing.assert_array_equal(get(recv), expected, err_msg=f"{first} {turn} {again}")
        for each in types:
            each.Free()

    for turn, first in enumerate([0, 1, 2, 0]):
        exchange(first, turn)


def test_derived_datatypes_in_other_collectives(comm, monkeypatch):
    column = MPI.FLOAT.Create_vector(5, 1, comm.size).Create_resized(0, 4).Commit()
    send, recv = xp.empty(5, "f4"), xp.empty((5, comm.size), "f4")
    for turn in range(3):
        send[...] = put(numbers(comm.rank, 5) + turn)
        if turn == 2:
            monkeypatch.setattr(run, "enqueue", refuse)
        comm.Allgather(send, [recv, 1, column])
        expected = np.stack([numbers(rank, 5) + turn for rank in range(comm.size)], axis=1)
        np.testing.assert_array_equal(get(recv), expected)
        comm.Bcast([recv, comm.size, column], 0)
        np.testing.assert_array_equal(get(recv), expected)
    column.Free()


def test_arrays_of_calls_with_derived_datatypes_are_not_held(comm):
    column = MPI.FLOAT.Create_vector(5, 1, comm.size).Create_resized(0, 4).Commit()
    send, recv = xp.ones(5, "f4"), xp.empty((5, comm.size), "f4")
    for _ in range(3):
        comm.Allgather(send, [recv, 1, column])
    get(recv)
    gone = [weakref.ref(array) for array in (send, recv)]
    del send, recv
    gc.collect()
    assert not any(each() is not None for each in gone)
    column.Free()


def test_arrays_are_not_held(comm):
    send, recv = xp.ones(10, "f4"), xp.ones(10, "f4")
    for _ in range(3):
        comm.Allreduce(send, recv)
        comm.Sendrecv(send, comm.rank, 0, recv, comm.rank, 0)
    get(recv)
    gone = weakref.ref(send)
    del send
    gc.collect()
    assert gone() is None


@pytest.mark.ranks(2)
def test_calls_are_compared_all_the_same(comm):
    send, recv = xp.ones(8, "f4"), xp.ones(8, "f4")
    for op in (MPI.SUM, MPI.MAX) * 2:
        comm.Allreduce(send, recv, op)
    comm.state.checking = True
    try:
        with pytest.raises(CollectiveMismatch):
            comm.Allreduce(send, recv, MPI.MAX if comm.rank else MPI.SUM)
    finally:
        comm.state.checking = False


def test_settings_are_those_of_the_moment(comm):
    """What the copy engines do takes an agreement of all ranks, each time."""
    count = comm.team.layout.packet_nbytes // 4 + 1
    window = comm.Alloc((comm.size, count), "f4")
    send = xp.full(count, comm.rank + 1, "f4")
    for comm.sm_free in (False, True, False, True, False):
        window[...] = 0
        comm.Allgather(send, window)
        np.testing.assert_array_equal(get(window)[:, -1], np.arange(comm.size) + 1)


def test_a_communicator_that_was_freed():
    comm = pyncclx.Communicator(MPI.COMM_WORLD.Dup())
    x = xp.ones(8, "f4")
    for _ in range(2):
        comm.Allreduce(MPI.IN_PLACE, x)
    comm.synchronize()
    comm.Free()
    with pytest.raises(MPI.Exception):
        comm.Allreduce(MPI.IN_PLACE, x)


def test_messages_in_the_same_memory(comm):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    send, recv = xp.empty(40_000, "u1"), xp.empty(40_000, "u1")
    for turn in range(2):
        for nbytes in (1024, 8, 40_000):
            for dtype in ("f4", "i8"):
                count = nbytes // np.dtype(dtype).itemsize
                send[:nbytes].view(dtype)[...] = put(numbers(comm.rank + turn, count, dtype))
                comm.Sendrecv(send[:nbytes].view(dtype), right, 0, recv[:nbytes].view(dtype), left, 0)
                np.testing.assert_array_equal(get(recv[:nbytes].view(dtype)), numbers(left + turn, count, dtype))


@pytest.mark.skipif(not HOST, reason="CuPy's arrays cannot be read-only")
def test_memory_that_becomes_read_only(comm):
    x = np.ones(8, "f4")
    comm.Allreduce(MPI.IN_PLACE, x)
    comm.Sendrecv(x, comm.rank, 0, np.empty(8, "f4"), comm.rank, 0)
    x.flags.writeable = False
    with pytest.raises(BufferError, match="read-only"):
        comm.Allreduce(MPI.IN_PLACE, x)
    with pytest.raises(BufferError, match="read-only"):
        comm.Sendrecv(np.empty(8, "f4"), comm.rank, 0, x, comm.rank, 0)
