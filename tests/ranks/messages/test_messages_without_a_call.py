"""Messages that no call completes: of requests that are freed, dropped or cancelled; sends before their receives."""

import gc
import threading
import time
import weakref

import numpy as np
import pytest
from mpi4py import MPI

from pyncclx import Request
from pyncclx.messages import departure
from pyncclx.messages.memory import bounce
from pyncclx.messages.send import Outgoing
from pyncclx.requests.open_receives import OPEN_RECEIVES
from support.arrays import Output, get, put, xp
from support.everywhere import assert_everywhere, raises_everywhere
from support.labelled_messages import LARGE, data_of, map_peers_if
from support.reversed_ranks import reversed_ranks, ring

SHORT = 11
MANY = bounce.SLOTS + 25
INT64 = MPI.INT64_T
CALLS = 5
LATE_S = 0.03  # longer than the monitor pauses

comm = pytest.fixture(reversed_ranks, scope="module")
ring = pytest.fixture(ring)


@pytest.fixture(params=[True, False], ids=["mapped", "unmapped"])
def acquainted(request, comm, monkeypatch):
    """The receiver can read the sender's memory, or MPI transfers the data."""
    map_peers_if(comm, request.param, monkeypatch)


def vector_of(count):
    """A datatype of every third element, and how many elements it spans."""
    datatype = INT64.Create_vector(count, 1, 3).Commit()
    return datatype, 3 * count


class Landing:
    """An array for a message of some elements, contiguous or every third."""

    def __init__(self, count, strided):
        self.count, self.strided = count, strided
        self.output = Output(3 * count if strided else count, "i8")
        self.poison = get(self.output.array)[0]
        self.datatype = vector_of(count)[0] if strided else INT64

    @property
    def spec(self):
        return [self.output.array, 1 if self.strided else self.count, self.datatype]

    def values(self):
        return get(self.output.array)[:: 3 if self.strided else 1]

    def is_untouched(self):
        return bool((get(self.output.array) == self.poison).all()) and not self.output.damage()

    def holds(self, expected):
        gaps = get(self.output.array).reshape(-1, 3)[:, 1:] if self.strided else self.poison
        return np.array_equal(self.values(), expected) and np.all(gaps == self.poison) and not self.output.damage()


def comes(landing, expected, seconds=5):
    """Whether the data comes though this rank calls nothing."""
    end = time.monotonic() + seconds
    while not landing.holds(expected) and time.monotonic() < end:
        time.sleep(0.002)
    return landing.holds(expected)


def junk(count):
    """Arrays that take the memory of those that were dropped."""
    return [xp.full(count, -7, "i8") for _ in range(4)]


# ---- Cancel ----------------------------------------------------------------------------------------------------------


def wait(request, status):
    request.Wait(status)


def until(request, status):
    while not request.Test(status):
        pass


def waitall(request, status):
    Request.Waitall([request], [status])


@pytest.mark.parametrize("complete", [wait, until, waitall])
@pytest.mark.parametrize("source", ["below", "any"])
@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("count", [SHORT, LARGE])
def test_cancel_before_a_message(comm, ring, count, strided, source, complete):
    """The array stays as it is, and the message that comes later is the next receive's."""
    above, below = ring
    first, second = Landing(count, strided), Landing(count, strided)
    others = [comm.Irecv(xp.empty(1, "i8"), below, 9) for _ in range(2)]  # which are open, too
    request = comm.Irecv(first.spec, below if source == "below" else MPI.ANY_SOURCE, 4)
    request.Cancel()
    status = MPI.Status()
    complete(request, status)
    assert_everywhere(comm, status.Is_cancelled() and not request and first.is_untouched())
    sending = [comm.Isend(put(data_of(comm.rank, 4, 1, count)), above, 4)]
    sending += [comm.Isend(put(np.ones(1, "i8")), above, 9) for _ in range(2)]
    comm.Recv(second.spec, below, 4, status)
    Request.Waitall(sending + others)
    ok = not status.Is_cancelled() and second.holds(data_of(below, 4, 1, count)) and first.is_untouched()
    assert_everywhere(comm, ok and status.Get_count(INT64) == count)


@pytest.mark.parametrize("count", [SHORT, LARGE])
def test_cancel_behind_a_message(comm, ring, acquainted, count):
    """It has been matched, so it is received."""
    above, below = ring
    landing, status = Landing(count, False), MPI.Status()
    request = comm.Irecv(landing.spec, below, 4)
    sending = comm.Isend(put(data_of(comm.rank, 4, 2, count)), above, 4)
    while not request.Get_status():
        pass
    request.Cancel()
    request.Wait(status)
    sending.Cancel()
    sending.Wait()
    assert_everywhere(comm, not status.Is_cancelled() and landing.holds(data_of(below, 4, 2, count)))


@pytest.mark.parametrize("count", [SHORT, LARGE])
def test_cancel_of_a_persistent_receive(comm, ring, count):
    """It can be started again."""
    above, below = ring
    landing, status = Landing(count, False), MPI.Status()
    receive = comm.Recv_init(landing.spec, below, 4)
    for call in range(3):
        receive.Start()
        if call != 1:
            receive.Cancel()
            receive.Wait(status)
            assert_everywhere(comm, status.Is_cancelled())
            continue
        assert landing.is_untouched()
        sending = comm.Isend(put(data_of(comm.rank, 4, 3, count)), above, 4)
        receive.Wait(status)
        sending.Wait()
        assert_everywhere(comm, not status.Is_cancelled() and landing.holds(data_of(below, 4, 3, count)))
    receive.Free()


def test_cancel_of_what_cannot_be_cancelled(comm):
    """As mpi4py does with host arrays."""
    x, y = put(np.ones(3)), put(np.zeros(3))
    collective, receive = comm.Iallreduce(x, y), comm.Recv_init(y, MPI.PROC_NULL)
    over = comm.Irecv(y, MPI.PROC_NULL)
    over.Cancel()
    over.Wait()
    for request in (collective, receive, over):
        with raises_everywhere(comm, MPI.Exception, "can be cancelled"):
            request.Cancel()
    collective.Wait()
    receive.Free()


# ---- Free, and requests that the program drops -----------------------------------------------------------------------


def free(requests):
    """Free the request in a list."""
    requests.pop().Free()


def drop(requests):
    """Keep no reference."""
    requests.pop()
    gc.collect()


@pytest.mark.parametrize("let_go", [free, drop])
@pytest.mark.parametrize("send", ["Isend", "Issend", "Send_init"])
@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("count", [SHORT, LARGE])
def test_a_send_whose_request_is_let_go(comm, ring, acquainted, count, strided, send, let_go):
    """The data is that of the array, which the program drops, too; the library keeps it no longer than it must."""
    above, below = ring
    datatype = vector_of(count)[0] if strided else INT64
    for call in range(2):
        x = put(np.repeat(data_of(comm.rank, 4, call, count), 3 if strided else 1))
        alive = weakref.ref(x)
        requests = [getattr(comm, send)([x, 1 if strided else count, datatype], above, 4)]
        if send == "Send_init":
            requests[0].Start()
        let_go(requests)
        del x
        others = junk(count)
        comm.Barrier()
        received = xp.empty(count, "i8")
        comm.Recv(received, below, 4)
        assert_everywhere(comm, np.array_equal(get(received), data_of(below, 4, call, count)) and len(others) == 4)
        end = time.monotonic() + 5
        while alive() is not None and time.monotonic() < end:  # till the monitor has seen it
            comm.Isend(put(np.zeros(1)), MPI.PROC_NULL).Wait()
            time.sleep(0.001)
            comm.endpoint.context.receives.pending_sends.sweep()
        assert_everywhere(comm, alive() is None)


@pytest.mark.skipif(MPI.Query_thread() < MPI.THREAD_MULTIPLE, reason="only one thread may call MPI")
@pytest.mark.parametrize("let_go", [free, drop])
@pytest.mark.parametrize("receive", ["Irecv", "Recv_init", "Isendrecv"])
@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("count", [SHORT, LARGE])
def test_a_receive_whose_request_is_let_go(comm, ring, acquainted, count, strided, receive, let_go):
    """The message comes without any call of this rank, and MPI's order of messages stays."""
    above, below = ring
    for call in range(2):
        landing, behind = Landing(count, strided), Landing(count, False)
        if receive == "Isendrecv":
            requests = [comm.Isendrecv(put(np.ones(1, "i8")), above, 8, landing.spec, below, 4)]
        else:
            requests = [getattr(comm, receive)(landing.spec, below, 4)]
        if receive == "Recv_init":
            requests[0].Start()
        let_go(requests)
        comm.Barrier()
        sending = [comm.Isend(put(data_of(comm.rank, 4, call + index, count)), above, 4) for index in range(2)]
        assert_everywhere(comm, comes(landing, data_of(below, 4, call, count)), f"{landing.values()}")
        comm.Recv(behind.spec, below, 4)
        if receive == "Isendrecv":
            comm.Recv(xp.empty(1, "i8"), below, 8)
        Request.Waitall(sending)
        assert_everywhere(comm, behind.holds(data_of(below, 4, call + 1, count)))


def test_a_request_whose_handle_was_copied(comm, ring):
    """The program has dropped one of two requests that are the same for MPI."""
    above, below = ring
    x, y = put(data_of(comm.rank, 4, 5, LARGE)), xp.zeros(LARGE, "i8")
    receiving, sending = comm.Irecv(y, below, 4), comm.Isend(x, above, 4)
    copies = [MPI.Request(receiving), MPI.Request(sending)]
    del receiving, sending
    gc.collect()
    MPI.Request.Waitall(copies)
    assert_everywhere(comm, np.array_equal(get(y), data_of(below, 4, 5, LARGE)))


def pass_on(comm, ring, call, posts):
    """Post and drop, then complete by a copy. Rank 0 does its own part late, and each rank waits for its neighbour."""
    above, below = ring
    x, y = put(data_of(comm.rank, 4, call, LARGE)), xp.zeros(LARGE, "i8")
    request = comm.Isend(x, above, 4) if posts == "Isend" else comm.Irecv(y, below, 4)
    copy = MPI.Request(request)
    del request
    if comm.rank > 0:
        copy.Wait()
    time.sleep(LATE_S if comm.rank == 0 else 0)
    comm.Recv(y, below, 4) if posts == "Isend" else comm.Send(x, above, 4)
    copy.Wait()
    return y


@pytest.fixture
def asked_by(monkeypatch):
    """The threads that ask whether a send has ended while a call finishes it: MPI allows one thread to do so."""
    asking, finishing = set(), set()
    finish, has_ended = Outgoing.finish, Outgoing.has_ended

    def note_finish(self, stream):
        finishing.add(self)
        finish(self, stream)
        finishing.discard(self)

    def note_question(self):
        if self in finishing:
            asking.add(threading.current_thread().name)
        return has_ended(self)

    monkeypatch.setattr(Outgoing, "finish", note_finish)
    monkeypatch.setattr(Outgoing, "has_ended", note_question)
    return asking


@pytest.mark.ranks(2)
@pytest.mark.parametrize("posts", ["Isend", "Irecv"])
def test_a_copied_handle_of_a_late_message(comm, ring, acquainted, asked_by, posts):
    """The monitor sees that the request was dropped while a call completes it, which alone moves the message on."""
    for call in range(CALLS):
        y = pass_on(comm, ring, call, posts)
        assert_everywhere(comm, np.array_equal(get(y), data_of(ring[1], 4, call, LARGE)), f"call {call}")
    assert_everywhere(comm, not OPEN_RECEIVES)
    assert_everywhere(comm, asked_by <= {threading.current_thread().name}, f"{asked_by}")


@pytest.mark.ranks(2)
@pytest.mark.parametrize("count", [SHORT, LARGE])
def test_a_copied_handle_of_an_exchange(comm, ring, acquainted, count):
    """Both messages of an `Isendrecv` that was dropped are completed by the copy. Rank 0 does its own part late."""
    above, below = ring
    for call in range(CALLS):
        x, y, status = put(data_of(comm.rank, 4, call, count)), xp.zeros(count, "i8"), MPI.Status()
        MPI.Comm.Barrier(comm)
        time.sleep(LATE_S if comm.rank == 0 else 0)
        request = comm.Isendrecv(x, above, 4, y, below, 4)
        copy = MPI.Request(request)
        del request
        gc.collect()
        copy.Wait(status)
        same = np.array_equal(get(y), data_of(below, 4, call, count))
        assert_everywhere(comm, same and (status.source, status.tag) == (below, 4), f"call {call}")


# ---- more sends than there are slots ---------------------------------------------------------------------------------


def by_send(comm, x, dest):
    comm.Send(x, dest, 1)


def by_isend(comm, x, dest):
    comm.Isend(x, dest, 1).Wait()


def by_test(comm, x, dest):
    assert comm.Isend(x, dest, 1).Test()


def by_persistent(comm, x, dest):
    request = comm.Send_init(x, dest, 1)
    request.Start()
    request.Wait()
    request.Free()


@pytest.mark.parametrize("count", [1, bounce.SLOT_NBYTES // 8])
@pytest.mark.parametrize("send", [by_send, by_isend, by_test, by_persistent])
def test_short_sends_wait_for_no_receiver(comm, send, count, monkeypatch):
    """To all ranks, more than there are slots; each receives another message first."""
    map_peers_if(comm, True, monkeypatch)
    others = [rank for rank in range(comm.size) if rank != comm.rank or comm.size == 1]
    for index in range(MANY):
        for rank in others:
            send(comm, put(data_of(comm.rank, 1, index % 200, count)), rank)
    for rank in others:
        comm.Send(put(data_of(comm.rank, 2, 0, 1)), rank, 2)
    received, problem = xp.empty(count, "i8"), ""
    for rank in others:
        comm.Recv(received, rank, 2)
    for rank in others:
        for index in range(MANY):
            comm.Recv(received, rank, 1)
            if not np.array_equal(get(received), data_of(rank, 1, index % 200, count)):
                problem = problem or f"message {index} of rank {rank}"
    assert_everywhere(comm, not problem, problem)


@pytest.mark.one_node
@pytest.mark.parametrize("count", [SHORT, LARGE])
def test_a_send_that_mpi_refuses_gives_its_place_back(comm, ring, monkeypatch, count):
    """However many there are: later messages still go by kernels."""
    above, below = ring
    map_peers_if(comm, True, monkeypatch)

    def refuse(*_):
        raise MPI.Exception(MPI.ERR_OTHER)

    with monkeypatch.context() as patched, raises_everywhere(comm, MPI.Exception):
        patched.setitem(departure.STARTS, False, refuse)
        for _ in range(bounce.PLACES):
            with pytest.raises(MPI.Exception):
                comm.Isend(put(np.ones(count, "i8")), above)
        comm.Isend(put(np.ones(count, "i8")), above)
    sent, own = [], Outgoing.signal_ready
    monkeypatch.setattr(Outgoing, "signal_ready", lambda self: (sent.append(self), own(self)))
    received = xp.empty(count, "i8")
    request = comm.Isend(put(data_of(comm.rank, 1, 1, count)), above)
    comm.Recv(received, below)
    request.Wait()
    assert_everywhere(comm, not sent[0].is_inline and np.array_equal(get(received), data_of(below, 1, 1, count)))
