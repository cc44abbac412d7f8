"""Requests of messages, on their own and among others, on one stream and on several."""

import os
from collections import deque

import pytest
from mpi4py import MPI

from pyncclx import NotSupported, PeerTimeout, Request
from pyncclx.messages.pending import StreamWait
from pyncclx.staging import requests as drop_in
from support.arrays import Output, gpu_only, put, synchronize, xp
from support.labelled_messages import EAGER, LARGE, data_of, map_peers
from support.reference import comparing
from support.reversed_ranks import ring


@pytest.mark.ranks(2)
@pytest.mark.parametrize("way", ["Waitall", "mpi4py's Waitall", "Testall", "Waitany", "Waitsome", "Test"])
@pytest.mark.parametrize("count", [9, LARGE])
def test_mixed_requests(comm, way, count):
    """Requests of device arrays, of host arrays and null ones in one list, and all ways to wait for them."""
    right, left = ring(comm)
    host_sent, host_received = bytearray(b"%3d" % comm.rank), bytearray(3)
    recv, status = Output(count, "i8"), [MPI.Status() for _ in range(5)]
    requests = [
        comm.Isend(put(data_of(comm.rank, 1, 0, count)), right, 1),
        comm.Irecv(recv.array, left, 1),
        comm.Isend(host_sent, right, 2),
        comm.Irecv(host_received, left, 2),
        MPI.REQUEST_NULL,
    ]
    assert all(requests[:4])
    if way == "Waitall":
        assert Request.Waitall(requests, status)
        assert (status[1].source, status[1].tag, status[1].Get_count(MPI.INT64_T)) == (left, 1, count)
        assert (status[3].source, status[3].Get_count(MPI.BYTE)) == (left, 3)
    elif way == "mpi4py's Waitall":
        assert MPI.Request.Waitall(requests, status)
        assert (status[1].source, status[1].tag, status[1].Get_count(MPI.INT64_T)) == (left, 1, count)
    elif way == "Testall":
        while not Request.Testall(requests):
            os.sched_yield()
    elif way == "Waitany":
        assert sorted(Request.Waitany(requests) for _ in range(4)) == [0, 1, 2, 3]
        assert Request.Waitany(requests) == MPI.UNDEFINED
    elif way == "Waitsome":
        done = []
        while len(done) < 4:
            done += Request.Waitsome(requests)
        assert sorted(done) == [0, 1, 2, 3]
        assert Request.Waitsome(requests) is None
    else:
        while not all(request.Test() for request in requests):
            os.sched_yield()
    assert not any(requests)
    with comparing() as compare:
        compare(recv, data_of(left, 1, 0, count), way)
    assert int(host_received) == left


@pytest.mark.ranks(2)
@pytest.mark.parametrize("way", ["Waitall", "Testall", "Waitany", "Waitsome", "waitall"])
@pytest.mark.parametrize("kind", [Request, drop_in.Request])
def test_copies(comm, kind, way):
    """A copy by the constructor is as good as the request: of a device array, a host array, a Python object."""
    right, left = ring(comm)
    recv, host, status = Output(LARGE, "i8"), bytearray(3), [MPI.Status() for _ in range(6)]
    requests = [
        comm.Irecv(recv.array, left, 1),
        comm.Isend(put(data_of(comm.rank, 1, 0, LARGE)), right, 1),
        comm.Irecv(host, left, 2),
        comm.Isend(bytearray(b"%3d" % comm.rank), right, 2),
    ]
    copies, done = [kind(each) for each in requests], []
    if way == "Testall":
        while not Request.Testall(copies, status):
            os.sched_yield()
    elif way == "Waitany":
        done = sorted(Request.Waitany(copies) for _ in copies)
    elif way == "Waitsome":
        while len(done) < 4:
            done += Request.Waitsome(copies)
    else:
        getattr(Request, way)(copies, status)
    assert sorted(done) in ([], [0, 1, 2, 3])
    assert not any(copies)
    assert bool(done) or (status[0].source, status[0].tag, status[0].Get_count(MPI.INT64_T)) == (left, 1, LARGE)
    with comparing() as compare:
        compare(recv, data_of(left, 1, 0, LARGE), way)
    assert int(host) == left
    receiving = kind(comm.irecv(source=left, tag=3))
    comm.isend(("from", comm.rank), right, 3).wait()
    assert receiving.wait() == ("from", left)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("kind", ["once", "persistent"])
def test_many_requests_let_the_host_wait_once(comm, kind, monkeypatch):
    right, left = ring(comm)
    sent = [put(data_of(comm.rank, tag, 0, 9)) for tag in range(3)]
    received = [Output(9, "i8") for _ in range(3)]
    waits = []
    wait = StreamWait.__call__
    monkeypatch.setattr(StreamWait, "__call__", lambda self: (waits.append(self), wait(self)))
    comm.blocking = "host"
    try:
        if kind == "once":
            requests = [comm.Irecv(each.array, left, tag) for tag, each in enumerate(received)]
            requests += [comm.Isend(each, right, tag) for tag, each in enumerate(sent)]
        else:
            requests = [comm.Recv_init(each.array, left, tag) for tag, each in enumerate(received)]
            requests += [comm.Send_init(each, right, tag) for tag, each in enumerate(sent)]
            type(requests[0]).Startall(requests)
        Request.Waitall(requests)
        assert waits == [StreamWait(comm.endpoint, waits[0]._stream)]
        with comparing() as compare:
            for tag, each in enumerate(received):
                compare(each, data_of(left, tag, 0, 9), tag)
        failed = PeerTimeout("Recv", 1, comm.rank, left, 2, 1)
        monkeypatch.setattr(StreamWait, "__call__", lambda self: raising(failed))
        short = Output(4, "i8")
        requests = [comm.Irecv(short.array, left, 3), comm.Isend(put(data_of(comm.rank, 3, 0, 4)), right, 3)]
        with pytest.raises(PeerTimeout):
            Request.Waitall(requests)
        assert not any(requests)
    finally:
        monkeypatch.undo()
        comm.blocking = "stream"


def tags_in(kind, comm, name, statuses, arrays):
    """Receive two messages from this rank itself by one call; return the tags in its statuses."""
    requests = [comm.Irecv(recv, comm.rank, tag) for tag, (_, recv) in enumerate(arrays, 1)]
    sends = [comm.Isend(send, comm.rank, tag) for tag, (send, _) in enumerate(arrays, 1)]
    found = {}
    while any(requests):
        answer = getattr(kind, name)(requests, statuses)
        if "some" in name:
            indices = answer[0] if name.islower() else answer
            found |= {index: status.tag for index, status in zip(indices, statuses, strict=False)}
    kind.Waitall(sends)
    return sorted(found.items()) or [status.tag for status in statuses]


@pytest.mark.parametrize("name", ["Waitall", "Testall", "Waitsome", "Testsome", "waitall", "testall", "waitsome"])
@pytest.mark.parametrize("made", [list, tuple, deque])
def test_statuses_in_any_sequence(comm, name, made):
    """A list of statuses grows. Of another sequence those are set that it has, as by mpi4py."""
    map_peers(comm)
    hosts = [(b"%5d" % tag, bytearray(5)) for tag in (1, 2)]
    device = [(put(data_of(comm.rank, tag, 0, 9)), Output(9, "i8").array) for tag in (1, 2)]
    for length in range(2 if "some" in name else 0, 4):  # how many end at once is not certain
        expected = tags_in(MPI.Request, MPI.COMM_SELF, name, made(MPI.Status() for _ in range(length)), hosts)
        for arrays in (device, [device[0], hosts[1]], hosts):
            statuses = made(MPI.Status() for _ in range(length))
            assert tags_in(Request, comm, name, statuses, arrays) == expected, length


def raising(error):
    raise error


@pytest.mark.ranks(2)
def test_window_that_is_younger_than_the_receive(comm):
    """What comes may lie in memory that ranks have mapped since the receive was posted."""
    dup, recv, odd = comm.Dup(), Output(LARGE, "i8"), comm.rank % 2
    map_peers(dup)
    received = dup.Irecv(recv.array, comm.rank - 1, 1) if odd else MPI.REQUEST_NULL
    window = dup.Alloc(LARGE, "i8")
    window[...] = put(data_of(comm.rank, 1, 0, LARGE))
    sent = dup.Isend(window, comm.rank + 1, 1) if not odd and comm.rank + 1 < comm.size else MPI.REQUEST_NULL
    Request.Waitall([received, sent])
    with comparing() as compare:
        compare(recv, data_of(comm.rank - 1, 1, 0, LARGE) if odd else recv.read(), "out of the window")
    dup.Free()


@pytest.mark.ranks(2)
def test_test_waits_for_nobody(comm):
    """Test is false while the receiver has not come, and blocks no stream."""
    map_peers(comm)
    dest = comm.size - 1
    recv = Output(LARGE, "i8")
    if comm.rank == 0:
        send = put(data_of(0, 1, 0, LARGE))
        request = comm.Isend(send, dest, 1)
        assert not request.Test()
        assert not request.Get_status()
        synchronize()
    MPI.Comm.Barrier(comm)
    if comm.rank == dest:
        comm.Recv(recv.array, 0, 1)
        with comparing() as compare:
            compare(recv, data_of(0, 1, 0, LARGE), "recv")
        comm.synchronize()
    if comm.rank == 0:
        while not request.Test():
            os.sched_yield()
        assert request.Test()  # a null request now


@pytest.mark.parametrize("count", [9, LARGE])
@pytest.mark.parametrize("blocking", ["stream", "host"])
def test_free_before_waiting(comm, count, blocking):
    """Messages outlive their communicator, and others made since are none of their business."""
    map_peers(comm)
    right, left = ring(comm)
    with comparing() as compare:
        for index in range(3):
            own, recv = comm.Dup(), Output(count, "i8")
            own.blocking = blocking
            requests = [own.Irecv(recv.array, left, 1), own.Isend(put(data_of(comm.rank, 1, index, count)), right, 1)]
            own.Free()
            other = comm.Dup()
            other.Sendrecv(put(data_of(comm.rank, 2, index, 1)), right, 2, xp.zeros(1, "i8"), left, 2)
            Request.Waitall(requests)
            other.Free()
            compare(recv, data_of(left, 1, index, count), f"message {index}")


@gpu_only
def test_streams(comm):
    """Sends come after what made the data on their stream, receives before what reads it on theirs."""
    right, left = ring(comm)
    streams = [xp.cuda.Stream(non_blocking=True) for _ in range(2)]
    with comparing() as compare:
        for count in (1000, 40 * EAGER):
            recvs = [xp.full(count, -1, "i8") for _ in streams]
            synchronize()
            requests = []
            for index, stream in enumerate(streams):
                with stream:
                    send = xp.zeros(count, "i8")
                    for _ in range(50):  # slow, on a stream of its own
                        send += 1
                    send += put(data_of(comm.rank, index, 0, count)) - 50
                    requests += [comm.Irecv(recvs[index], left, index), comm.Isend(send, right, index)]
            with streams[0]:
                Request.Waitall(requests)
                copies = [recv.copy() for recv in recvs]
            for index, copy in enumerate(copies):
                compare(copy, data_of(left, index, 0, count), f"stream {index}, {count} elements")


@gpu_only
@pytest.mark.parametrize("wait", ["Wait", "Waitall", "Test"])
@pytest.mark.parametrize("count", [1000, 40 * EAGER])
def test_a_stream_that_has_waited_may_write_what_another_one_sends(comm, count, wait):
    right, left = ring(comm)
    map_peers(comm)
    first, second = (xp.cuda.Stream(non_blocking=True) for _ in range(2))
    recv, slow = Output(count, "i8"), xp.zeros(1 << 24)
    synchronize()
    with comparing() as compare:
        for step in range(5):
            data = put(data_of(comm.rank, step, 0, count))
            synchronize()
            with first:
                for _ in range(200):
                    slow += 1
                sending = comm.Isend(data, right, 1)
            receiving = comm.Irecv(recv.array, left, 1)
            with second:
                if wait == "Waitall":
                    Request.Waitall([sending])
                elif wait == "Wait":
                    sending.Wait()
                else:
                    while not sending.Test():
                        pass
                data[...] = -1
            receiving.Wait()
            synchronize()
            compare(recv, data_of(left, step, 0, count), f"message {step}")


@pytest.mark.parametrize("cancel", [Request.Cancel, MPI.Request.Cancel, lambda request: MPI.Request(request).Cancel()])
def test_cancelled(comm, cancel):
    """By its own method, by mpi4py's, by a copy; the message that comes then is that of the next receive."""
    right, left = ring(comm)
    first, recv, status = Output(9, "i8"), Output(9, "i8"), MPI.Status()
    request = comm.Irecv(first.array, left, 1)
    cancel(request)
    assert request.Wait(status)
    assert status.Is_cancelled()
    MPI.Comm.Barrier(comm)
    sending = comm.Isend(put(data_of(comm.rank, 1, 0, 9)), right, 1)
    comm.Recv(recv.array, left, 1)
    sending.Wait()
    with comparing() as compare:
        compare(recv, data_of(left, 1, 0, 9), "the next receive")


@gpu_only
def test_capture_is_refused(comm):
    map_peers(comm)
    stream, array = xp.cuda.Stream(non_blocking=True), xp.zeros(4)
    with stream:
        stream.begin_capture()
        with pytest.raises(NotSupported, match="graph"):
            comm.Send(array, comm.rank)
        stream.end_capture()
