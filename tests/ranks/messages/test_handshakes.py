"""Receives and probes of any tag beside partitioned requests, whose ends meet meanwhile."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pytest
from mpi4py import MPI

from pyncclx import Communicator, Prequest, Request
from pyncclx.communicator import host_first
from pyncclx.messages.partitioned import contacts
from pyncclx.messages.partitioned.board import _SLOTS, PeerBoard
from pyncclx.requests.open_receives import LOCK
from support.arrays import get, put, synchronize, xp
from support.everywhere import assert_everywhere
from support.labelled_messages import data_of
from support.reversed_ranks import ring

COUNT, TAG = 36, 3
NBYTES, ROOM = 8 * COUNT, 2000  # of the program's message, of the array that receives it
pytestmark = [pytest.mark.timeout(60), pytest.mark.one_node]


@pytest.fixture
def own(comm):
    """A duplicate, on which nothing has been received; the monitor thread follows what begins on it."""
    own, (right, left) = comm.Dup(), ring(comm)
    own.Sendrecv(put(np.zeros(1)), right, 0, xp.zeros(1), left, 0)
    yield own
    own.Free()


def plain_irecv(own, room, source):
    """A NumPy array's, as beside a GPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host_first, "looks_closely", lambda: False)
        return own.Irecv(np.frombuffer(room, "u1"), source)


def recv_init(own, room, source):
    request = own.Recv_init([room, MPI.BYTE], source)
    request.Start()
    return request


def isendrecv(own, room, source):
    return own.Isendrecv([b"", MPI.BYTE], MPI.PROC_NULL, 0, [room, MPI.BYTE], source)


def isendrecv_replace(own, room, source):
    return own.Isendrecv_replace([room, MPI.BYTE], MPI.PROC_NULL, 0, source)


BEGINNINGS = {
    "Irecv": lambda own, room, source: own.Irecv([room, MPI.BYTE], source),
    "Irecv of a plain array": plain_irecv,
    "Recv_init": recv_init,
    "Isendrecv": isendrecv,
    "Isendrecv_replace": isendrecv_replace,
}
ONLY_HOST = ("Isendrecv", "Isendrecv_replace") if MPI.Get_library_version().startswith("MPICH") else ()


def received(own, room, status):
    """Whether the right neighbour's message is in an array and a status."""
    right, _ = ring(own)
    data = np.frombuffer(room, "i8", COUNT)
    expected = data_of(right, TAG, 0, COUNT)
    return np.array_equal(data, expected) and (status.source, status.tag) == (right, TAG)


def partitions(own, number=1):
    """Send partitions around the ring, by a number of requests at once; return whether all are right."""
    right, left = ring(own)
    xs, ys = [put(np.arange(8.0) + own.rank + i) for i in range(number)], [xp.zeros(8) for _ in range(number)]
    receives = [own.Precv_init(y, 2, left, i) for i, y in enumerate(ys)]
    sends = [own.Psend_init(x, 4, right, i) for i, x in enumerate(xs)]
    Prequest.Startall(receives + sends)
    for send in sends:
        send.Pready_range(0, 3)
    Request.Waitall(receives + sends)
    synchronize()
    for each in receives + sends:
        each.Free()
    return all(y.tolist() == (np.arange(8.0) + left + i).tolist() for i, y in enumerate(ys))


@pytest.mark.parametrize("source", ["one", "any"])
@pytest.mark.parametrize("array", [put, np.copy], ids=["device", "host"])
@pytest.mark.parametrize("beginning", BEGINNINGS)
def test_partitions_come_while_a_receive_is_open(own, beginning, array, source):
    if beginning in ONLY_HOST and array is put:
        pytest.skip("MPICH's status of such a request is not that of its receive")
    (right, left), room, status = ring(own), bytearray(ROOM), MPI.Status()
    request = BEGINNINGS[beginning](own, room, right if source == "one" else MPI.ANY_SOURCE)
    MPI.Comm.Barrier(own)
    are_right = [partitions(own), partitions(own)]
    sending = own.Isend(array(data_of(own.rank, TAG, 0, COUNT)), left, TAG)
    request.Wait(status)
    sending.Wait()
    own.synchronize()
    assert_everywhere(own, all(are_right) and received(own, room, status))
    with suppress(MPI.Exception):
        request.Free()


@pytest.mark.parametrize("ending", ["Waitall", "Testall"])
def test_calls_of_mpi4py_complete_the_receive(own, ending):
    (right, left), room, status = ring(own), bytearray(ROOM), MPI.Status()
    request = own.Irecv([room, MPI.BYTE], right)
    is_right = partitions(own)
    sending = MPI.Comm.Isend(own, data_of(own.rank, TAG, 0, COUNT), left, TAG)
    if ending == "Waitall":
        MPI.Request.Waitall([request], [status])
    while not MPI.Request.Testall([request]):
        pass
    sending.Wait()
    status.Set_source(right)
    status.Set_tag(TAG)
    assert_everywhere(own, is_right and received(own, room, status))


def test_a_device_array_receives(own):
    (_, left), status, y = ring(own), MPI.Status(), xp.zeros(COUNT, "i8")
    request = own.Irecv(y)
    is_right = partitions(own)
    sending = own.Isend(put(data_of(own.rank, TAG, 0, COUNT)), left, TAG)
    request.Wait(status)
    sending.Wait()
    own.synchronize()
    assert_everywhere(own, is_right and received(own, np.asarray(y.tolist(), "i8").tobytes(), status))


def test_an_object_is_received(own):
    _, left = ring(own)
    request = own.irecv(bytearray(ROOM))
    is_right = partitions(own)
    sending = own.isend({"rank": own.rank}, left, TAG)
    found = request.wait()
    sending.wait()
    assert_everywhere(own, is_right and found == {"rank": ring(own)[0]})


BLOCKING = {
    "Recv": lambda own, room, status: own.Recv([room, MPI.BYTE], status=status),
    "Sendrecv": lambda own, room, status: own.Sendrecv(
        [b"", MPI.BYTE], MPI.PROC_NULL, 0, [room, MPI.BYTE], status=status
    ),
    "Sendrecv_replace": lambda own, room, status: own.Sendrecv_replace(
        [room, MPI.BYTE], MPI.PROC_NULL, status=status
    ),
    "Probe": lambda own, room, status: own.Probe(status=status) and own.Recv([room, MPI.BYTE], status.source, TAG),
    "Mprobe": lambda own, room, status: own.Mprobe(status=status).Recv([room, MPI.BYTE]),
}


@pytest.mark.parametrize("call", BLOCKING)
def test_a_blocking_call_after_the_peer_has_started(own, call):
    """The peer's end has been started before the other end is made."""
    (right, left), room, status = ring(own), bytearray(ROOM), MPI.Status()
    y, x = xp.zeros(8), put(np.arange(8.0) + own.rank)
    receive = own.Precv_init(y, 2, left, 0)
    receive.Start()
    MPI.Comm.Barrier(own)
    sending = own.Isend(data_of(own.rank, TAG, 0, COUNT).view("u1"), left, TAG)
    BLOCKING[call](own, room, status)
    sending.Wait()
    send = own.Psend_init(x, 2, right, 0)
    send.Start()
    send.Pready_range(0, 1)
    Request.Waitall([send, receive])
    own.synchronize()
    assert_everywhere(own, received(own, room, status) and y.tolist() == (np.arange(8.0) + left).tolist())


@pytest.mark.parametrize("later", ["Irecv", "Recv"])
def test_messages_are_received_in_order(own, later):
    """The first message meets the receive of any tag, because it was posted first."""
    right, left = ring(own)
    rooms = xp.zeros((2, COUNT), "i8")
    first = own.Irecv(rooms[0], right)
    y = xp.zeros(8)
    partitioned = own.Precv_init(y, 2, left, 0)
    partitioned.Start()
    MPI.Comm.Barrier(own)
    sends = [own.Isend(put(data_of(own.rank, TAG, number, COUNT)), left, TAG) for number in range(2)]
    if later == "Irecv":
        own.Irecv(rooms[1], right, TAG).Wait()
    else:
        own.Recv(rooms[1], right, TAG)
    first.Wait()
    Request.Waitall(sends)
    send = own.Psend_init(put(np.zeros(8)), 2, right, 0)
    send.Start()
    send.Pready_range(0, 1)
    Request.Waitall([send, partitioned])
    found = get(rooms)
    assert_everywhere(own, all(np.array_equal(found[i], data_of(right, TAG, i, COUNT)) for i in range(2)))


def test_more_requests_than_a_board_has_slots(own):
    (_, left), room, status = ring(own), bytearray(ROOM), MPI.Status()
    request = own.Irecv([room, MPI.BYTE])
    are_right = [partitions(own, 2 * _SLOTS + 1), partitions(own, _SLOTS), partitions(own)]
    sending = own.Isend(data_of(own.rank, TAG, 0, COUNT).view("u1"), left, TAG)
    request.Wait(status)
    sending.Wait()
    assert_everywhere(own, all(are_right) and received(own, room, status))


def test_an_earlier_request_meets_after_many_later_ones(own):
    right, left = ring(own)
    y = xp.zeros(8)
    receive = own.Precv_init(y, 2, left, 1000)
    receive.Start()
    are_right = [partitions(own) for _ in range(3 * _SLOTS)]
    send = own.Psend_init(put(np.arange(8.0) + own.rank), 2, right, 1000)
    send.Start()
    send.Pready_range(0, 1)
    Request.Waitall([send, receive])
    own.synchronize()
    assert_everywhere(own, all(are_right) and y.tolist() == (np.arange(8.0) + left).tolist())


def test_two_of_the_ranks_have_partitioned_requests(own):
    """No other rank takes part, so nothing may be collective."""
    source, dest = 0, own.size - 1
    room, status = bytearray(ROOM), MPI.Status()
    request = own.Irecv([room, MPI.BYTE])
    y = xp.zeros(8)
    if own.rank == dest:
        receive = own.Precv_init(y, 2, source, 0)
        receive.Start()
    if own.rank == source:
        send = own.Psend_init(put(np.arange(8.0)), 2, dest, 0)
        send.Start()
        send.Pready_range(0, 1)
        send.Wait()
    if own.rank == dest:
        receive.Wait()
        own.synchronize()
    is_right = own.rank != dest or y.tolist() == np.arange(8.0).tolist()
    MPI.Comm.Barrier(own)
    sending = own.Isend(data_of(own.rank, TAG, 0, COUNT).view("u1"), ring(own)[1], TAG)
    request.Wait(status)
    sending.Wait()
    assert_everywhere(own, is_right and received(own, room, status))


def test_a_cancelled_receive(own):
    (right, left), room, status = ring(own), bytearray(ROOM), MPI.Status()
    request = own.Irecv([room, MPI.BYTE], right)
    is_right = partitions(own)
    request.Cancel()
    request.Wait(status)
    MPI.Comm.Barrier(own)
    is_right = is_right and status.Is_cancelled() and not any(room)
    sending = own.Isend(data_of(own.rank, TAG, 0, COUNT).view("u1"), left, TAG)
    own.Recv([room, MPI.BYTE], right, status=status)
    sending.Wait()
    assert_everywhere(own, is_right and received(own, room, status))


@pytest.mark.skipif(MPI.Query_thread() < MPI.THREAD_MULTIPLE, reason="no thread of the library's calls MPI")
def test_the_receiver_needs_no_call(own):
    """The sender's Wait ends while the receiver waits in a call of mpi4py's own."""
    right, left = ring(own)
    y = xp.zeros(8)
    receives = [own.Precv_init(y, 2, left, tag) for tag in range(2)]
    Prequest.Startall(receives)
    for tag in range(2):
        send = own.Psend_init(put(np.arange(8.0) + own.rank), 2, right, tag)
        send.Start()
        send.Pready_range(0, 1)
        send.Wait()
        own.synchronize()
        MPI.Comm.Barrier(own)
    Request.Waitall(receives)
    own.synchronize()
    assert_everywhere(own, y.tolist() == (np.arange(8.0) + left).tolist())


@pytest.mark.parametrize("disconnects", [False, True])
def test_a_communicator_ends_after_a_receive_of_any_tag(comm, disconnects):
    own = comm.Dup()
    sending = own.Isend([b"1", MPI.BYTE], ring(own)[1])
    own.Recv([bytearray(1), MPI.BYTE])
    sending.Wait()
    own.Disconnect() if disconnects else own.Free()
    assert own == MPI.COMM_NULL


def test_a_predefined_communicator_is_used_after_it_has_been_released(comm):
    world = Communicator()
    for _ in range(2):
        room, status = bytearray(ROOM), MPI.Status()
        request = world.Irecv([room, MPI.BYTE], tag=MPI.ANY_TAG)
        is_right = partitions(world)
        sending = world.Isend(data_of(world.rank, TAG, 0, COUNT).view("u1"), ring(world)[1], TAG)
        request.Wait(status)
        sending.Wait()
        is_right = is_right and received(world, room, status)
        world.free()
        assert_everywhere(comm, is_right)


def test_a_predefined_communicator_is_released_by_one_rank_after_the_other(comm):
    """One rank begins the next handshakes, while the other has not released the communicator yet."""
    world, are_right = Communicator(), []
    for number in range(4):
        are_right.append(partitions(world, number + 1))
        if comm.rank % 2 == number % 2:
            time.sleep(0.1)
        world.free()
    assert_everywhere(comm, all(are_right))


def test_no_error_handler_is_called_at_the_end(comm):
    """It would end the program where errors are fatal."""
    world, own, called = MPI.COMM_WORLD, comm.Dup(), []
    before, handler = world.Get_errhandler(), MPI.Comm.Create_errhandler(lambda comm, code: called.append(code))
    world.Set_errhandler(handler)
    MPI.Comm.Set_errhandler(own, handler)
    own.Iprobe()
    is_right = partitions(own)
    own.Free()
    world.Set_errhandler(before)
    handler.Free()
    assert_everywhere(comm, is_right and not called)


@pytest.mark.parametrize("late", [0, 1])
def test_a_communicator_is_freed_while_partitions_are_under_way(comm, late):
    """One end is started after the other rank has called Free."""
    own, (right, left) = comm.Dup(), ring(comm)
    y = xp.zeros(8)
    receive, send = own.Precv_init(y, 2, left, 0), own.Psend_init(put(np.arange(8.0) + own.rank), 2, right, 0)
    if comm.rank % 2 == late:
        time.sleep(0.3)
    Prequest.Startall([receive, send])
    send.Pready_range(0, 1)
    own.Free()
    Request.Waitall([receive, send])
    synchronize()
    assert_everywhere(comm, y.tolist() == (np.arange(8.0) + left).tolist())


@pytest.mark.skipif(MPI.Query_thread() < MPI.THREAD_MULTIPLE, reason="threads call MPI")
def test_threads_make_the_first_receives_of_any_tag(comm):
    """Both threads use the same receives of the library's."""
    for _ in range(20):
        own, begin = comm.Dup(), threading.Barrier(2)

        def receive(own=own, begin=begin):
            begin.wait()
            return own.Iprobe(), own.contacts

        with ThreadPoolExecutor(2) as threads:
            (_, first), (_, second) = [each.result() for each in [threads.submit(receive) for _ in range(2)]]
        is_right = first is second and partitions(own)
        assert_everywhere(comm, is_right)
        own.Free()


@pytest.mark.parametrize("source", [np.array, np.int64])
def test_a_source_that_is_no_int(own, source):
    (right, left), room, status = ring(own), bytearray(ROOM), MPI.Status()
    sending = own.Isend(data_of(own.rank, TAG, 0, COUNT).view("u1"), left, TAG)
    own.Recv([room, MPI.BYTE], source(right), MPI.ANY_TAG, status)
    sending.Wait()
    assert_everywhere(own, received(own, room, status))


def test_each_board_is_read_once_in_a_poll(own, monkeypatch):
    """However many sends wait for an offer that is not there."""
    (right, left), read, look = ring(own), [], PeerBoard.look
    assert partitions(own)
    x, y = put(np.zeros(8)), xp.zeros(8)
    sends = [own.Psend_init(x, 2, right, TAG + i) for i in range(5)]
    receives = [own.Precv_init(y, 2, left, TAG + i) for i in range(5)]
    Prequest.Startall(sends)
    with LOCK, monkeypatch.context() as patch:
        patch.setattr(PeerBoard, "look", lambda board: read.append(board) or look(board))
        own.endpoint.context.receives.launch_arrived()
    is_right = len(read) == 1 and not any(send._work.is_met for send in sends)
    MPI.Comm.Barrier(own)
    Prequest.Startall(receives)
    for send in sends:
        send.Pready_range(0, 1)
    Request.Waitall(receives + sends)
    own.synchronize()
    assert_everywhere(own, is_right, len(read))


def test_ended_receives_of_deleted_communicators_are_dropped(comm):
    """Each rank has the location of its right neighbour's board, so one receive has ended; the others stay."""
    for _ in range(3):
        other, before = comm.Dup(), len(contacts._LOST)
        is_right = partitions(other)
        other.synchronize()
        MPI.Comm(other).Free()
        number = len(contacts._LOST) - before
        with comm.Dup() as following:
            is_right &= partitions(following)
        is_right &= len(contacts._LOST) - before == max(number - 1, 0) and all(each for each, _ in contacts._LOST)
        assert_everywhere(comm, is_right, (number, len(contacts._LOST) - before))
