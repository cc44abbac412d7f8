"""A posted receive goes on whatever its process does: MPI's rule of progress. Without it these tests hang.

Even ranks post receives and are then elsewhere. Odd ranks send, wait on the host until they were received, and only
then come to where the even ones are.
"""

import os
import time

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx import Request
from support.arrays import Output, get, gpu_only, host_only, put, synchronize, xp
from support.everywhere import assert_everywhere
from support.labelled_messages import LARGE, data_of, map_peers
from support.reference import comparing
from support.window_memory import COUNT

SHORT, LONG = 12, 1 << 17  # 8 bytes each: about 100 bytes, and 1 MB
MANY = 2000  # messages, more than any MPI takes before their receiver looks
INT64 = MPI.INT64_T

pytestmark = pytest.mark.skipif(MPI.Query_thread() < MPI.THREAD_MULTIPLE, reason="only one thread may call MPI")


@pytest.fixture(autouse=True)
def acquainted(comm):
    """Data stays on the device, and what mpi4py does at its first reduction is done: it holds the interpreter."""
    map_peers(comm)
    comm.allreduce(0)


def partner(comm):
    """Two neighbouring ranks; a last one without another is its own."""
    return min(comm.rank ^ 1, comm.size - 1)


def is_odd(comm):
    return comm.rank % 2 == 1


# Where the even ranks are: each is called by all ranks, by odd ones when their messages have been received.


def allreduce(comm):
    recv = xp.empty(3, "f4")
    comm.Allreduce(xp.ones(3, "f4"), recv)
    assert get(recv).tolist() == [comm.size] * 3


def iallreduce(comm):
    recv = xp.empty(3, "f4")
    comm.Iallreduce(xp.ones(3, "f4"), recv).Wait()
    assert get(recv).tolist() == [comm.size] * 3


def persistent(comm):
    recvs = [xp.empty(3, "f4") for _ in range(2)]
    requests = [comm.Allreduce_init(xp.ones(3, "f4"), recv) for recv in recvs]
    requests[0].Start()
    requests[0].Wait()
    pyncclx.Prequest.Startall(requests)
    Request.Waitall(requests)
    assert [get(recv).tolist() for recv in recvs] == [[comm.size] * 3] * 2
    for request in requests:
        request.Free()


def object_message(comm):
    if partner(comm) == comm.rank:
        return
    if is_odd(comm):
        comm.send("here", partner(comm), 9)
    else:
        assert comm.recv(source=partner(comm), tag=9) == "here"


def host_message(comm):
    there = bytearray(1)
    if partner(comm) == comm.rank:
        return
    if is_odd(comm):
        comm.Send(bytearray(b"x"), partner(comm), 9)
    else:
        comm.Recv(there, partner(comm), 9)
        assert there == b"x"


def iprobes(comm):
    if partner(comm) == comm.rank:
        return
    if not is_odd(comm):
        while not comm.Iprobe(partner(comm), 9):
            os.sched_yield()
    host_message(comm)


def signal(comm):
    win = pyncclx.Win.Create(comm.Alloc(COUNT, "i4"), 4, comm=comm)
    win.Put_signal(xp.zeros(1, "i4"), partner(comm))
    win.Wait_signal()
    synchronize()
    win.Free()


WINDOWS = pytest.mark.one_node
WAYS = {
    "host barrier": MPI.Comm.Barrier,
    "device barrier": lambda comm: comm.Barrier(device=True),
    "mpi4py's allreduce": lambda comm: comm.allreduce(1),
    "Allreduce": allreduce,
    "Iallreduce": iallreduce,
    "Allreduce_init": persistent,
    "recv": object_message,
    "Recv": host_message,
    "Iprobe": iprobes,
    "Wait_signal": signal,
    "Dup": lambda comm: comm.Dup().Free(),
}


def exchange(comm, way, method, sent, received):
    """One message of each pair, in an array or a buffer with its datatype; the receiver's status."""
    status, other = MPI.Status(), partner(comm)
    if other == comm.rank:
        requests = [comm.Irecv(received, other, 1), comm.Isend(sent, other, 1)]
        WAYS[way](comm)
        Request.Waitall(requests, statuses := [MPI.Status(), MPI.Status()])
        return statuses[0]
    if is_odd(comm):
        getattr(comm, method)(sent, other, 1)
        comm.synchronize()
        WAYS[way](comm)
    else:
        request = comm.Irecv(received, other, 1)
        WAYS[way](comm)
        request.Wait(status)
    return status


def receives(comm):
    return not is_odd(comm) or partner(comm) == comm.rank


@pytest.mark.parametrize("count", [SHORT, LONG])
@pytest.mark.parametrize("method", ["Send", "Ssend"])
@pytest.mark.parametrize("way", [pytest.param(way, marks=WINDOWS if way == "Wait_signal" else ()) for way in WAYS])
def test_elsewhere(comm, way, method, count):
    recv = Output(count, "i8")
    status = exchange(comm, way, method, put(data_of(comm.rank, 1, 0, count)), recv.array)
    with comparing() as compare:
        if receives(comm):
            compare(recv, data_of(partner(comm), 1, 0, count), way)
            assert (status.source, status.tag, status.Get_count(INT64)) == (partner(comm), 1, count)


@pytest.mark.parametrize("way", ["host barrier", "Allreduce"])
@pytest.mark.parametrize("blocking", ["stream", "host"])
def test_columns(comm, way, blocking):
    """Derived datatypes: the second column becomes the last."""
    column = INT64.Create_vector(LARGE, 1, 4).Create_resized(0, 8).Commit()
    x, y = (np.arange(4 * LARGE).reshape(LARGE, 4) * 1000 + rank for rank in (comm.rank, partner(comm)))
    recv, own = Output((LARGE, 4), "i8"), comm.Dup()
    own.blocking = blocking
    expected = recv.read()
    exchange(own, way, "Send", [put(x), (1, 1), column], [recv.array, (1, 3), column])
    expected[:, 3] = y[:, 1]
    with comparing() as compare:
        if receives(comm):
            compare(recv, expected, way)
    own.Free()
    column.Free()


@pytest.mark.parametrize("way", ["host barrier", "Allreduce"])
def test_out_of_a_window(comm, way):
    """The window is made when the receive is open, as in a message that is sent at once after that."""
    recv, own, odd = Output(LONG, "i8"), comm.Dup(), is_odd(comm)
    map_peers(own)
    own.Alloc(1)
    request = None if odd else own.Irecv(recv.array, partner(comm), 1)
    window = own.Alloc(LONG, "i8")
    window[...] = put(data_of(comm.rank, 1, 0, LONG))
    sent = own.Isend(window, partner(comm), 1) if partner(comm) == comm.rank and not odd else None
    if odd:
        own.Send(window, partner(comm), 1)
        own.synchronize()
    WAYS[way](own)
    if request is not None:
        request.Wait()
        with comparing() as compare:
            compare(recv, data_of(partner(comm), 1, 0, LONG), way)
    if sent is not None:
        sent.Wait()
    MPI.Comm.Barrier(comm)
    own.Free()


@pytest.mark.parametrize("way", ["host barrier", "Allreduce"])
@pytest.mark.parametrize("wildcards", [False, True])
def test_several_from_several(comm, way, wildcards):
    """To the last rank from all others, with tags, in an order of its own; those with wildcards match in order."""
    counts, last = [LARGE, SHORT, LONG, 0, LARGE], comm.size - 1
    if comm.rank < last:
        for tag, count in enumerate(counts):
            comm.Send(put(data_of(comm.rank, tag, 0, count)), last, tag)
        comm.synchronize()
        WAYS[way](comm)
        return
    keys = [(source, tag) for tag in (2, 0, 3, 1, 4) for source in range(last)]
    recvs, statuses = [Output(LONG, "i8") for _ in keys], [MPI.Status() for _ in keys]
    anywhere = MPI.ANY_SOURCE, MPI.ANY_TAG
    requests = [
        comm.Irecv(recv.array, *(anywhere if wildcards else key)) for key, recv in zip(keys, recvs, strict=True)
    ]
    WAYS[way](comm)
    order = np.random.default_rng(1).permutation(len(keys))
    for i in order:
        requests[i].Wait(statuses[i])
    came = [(status.source, status.tag) for status in statuses]
    if wildcards:
        assert sorted(came) == sorted(keys)
        assert all([tag for who, tag in came if who == source] == list(range(5)) for source in range(last))
    else:
        assert came == keys
    for recv, (source, tag) in zip(recvs, came, strict=True):
        values, count = recv.read(), counts[tag]
        assert values[:count].tobytes() == data_of(source, tag, 0, count).tobytes(), (source, tag)
        assert (values[count:].view("u1") == 0xA5).all()
        assert not recv.damage()


def test_too_long(comm):
    """The error is that of the call that waits; the sender goes on, and so does the communicator."""
    with comparing() as compare:
        for way in ("host barrier", "Allreduce"):
            recv = Output(LARGE - 1, "i8")
            untouched = recv.read()
            if receives(comm):
                with pytest.raises(MPI.Exception, match="the buffer has room for") as raised:
                    exchange(comm, way, "Send", put(data_of(comm.rank, 1, 0, LARGE)), recv.array)
                assert (raised.value.__cause__ or raised.value).Get_error_class() == MPI.ERR_TRUNCATE
                compare(recv, untouched, "too short")
            else:
                exchange(comm, way, "Send", put(data_of(comm.rank, 1, 0, LARGE)), None)
            recv = Output(LARGE, "i8")
            exchange(comm, way, "Send", put(data_of(comm.rank, 1, 1, LARGE)), recv.array)
            if receives(comm):
                compare(recv, data_of(partner(comm), 1, 1, LARGE), "the next")


@pytest.mark.parametrize("count", [SHORT, LONG])
def test_host_array_is_sent(comm, count):
    """A message of mpi4py's for a device array."""
    recv = Output(count, "i8")
    sent = bytearray(data_of(comm.rank, 1, 0, count).tobytes())
    exchange(comm, "host barrier", "Send", sent, recv.array)
    with comparing() as compare:
        if receives(comm):
            compare(recv, data_of(partner(comm), 1, 0, count), "from the host")


def test_freed_meanwhile(comm):
    """Free of the communicator is where the receiver is; the message outlives it."""
    own, recv = comm.Dup(), Output(LONG, "i8")
    request = own.Irecv(recv.array, partner(comm), 1) if receives(comm) else None
    if is_odd(comm):
        own.Send(put(data_of(comm.rank, 1, 0, LONG)), partner(comm), 1)
        own.synchronize()
    elif partner(comm) == comm.rank:
        own.Isend(put(data_of(comm.rank, 1, 0, LONG)), comm.rank, 1)
    own.Free()
    if request is not None:
        request.Wait()
        with comparing() as compare:
            compare(recv, data_of(partner(comm), 1, 0, LONG), "of a communicator that is gone")


def test_others_wait_meanwhile(comm):
    """One receive stays open for long, and the monitor sleeps and wakes, while other messages come and go."""
    recv, other = Output(LONG, "i8"), partner(comm)
    request = comm.Irecv(recv.array, other, 7)
    with comparing() as compare:
        for index in range(60):
            count = (SHORT, LARGE)[index % 2]
            own = Output(count, "i8")
            comm.Sendrecv(put(data_of(comm.rank, 2, index, count)), other, 2, own.array, other, 2)
            compare(own, data_of(other, 2, index, count), f"message {index}")
            if index % 20 == 0:
                time.sleep(0.01)
                MPI.Comm.Barrier(comm)
        sent = comm.Isend(put(data_of(comm.rank, 7, 0, LONG)), other, 7)
        MPI.Comm.Barrier(comm)
        Request.Waitall([sent, request])
        compare(recv, data_of(other, 7, 0, LONG), "the long one")


@pytest.mark.ranks(2)
@pytest.mark.parametrize("is_over", [False, True])
def test_mpi_has_still_to_send(comm, is_over):
    """Odd ranks go into a sum, whose kernel waits; even ones come there when they have received the last message."""
    recv = Output(1, "i8")
    if is_odd(comm):
        sends = [comm.Isend(put(data_of(comm.rank, i >> 8, i & 255, 1)), partner(comm), 1) for i in range(MANY)]
        if is_over:
            Request.Waitall(sends)
        allreduce(comm)
        Request.Waitall(sends)
    else:
        time.sleep(0.2)
        with comparing() as compare:
            for i in range(MANY if partner(comm) != comm.rank else 0):
                comm.Recv(recv.array, partner(comm), 1)
                compare(recv, data_of(partner(comm), i >> 8, i & 255, 1), f"message {i}")
        allreduce(comm)


BUFFERED = {
    "Bsend": lambda comm, data, dest: comm.Bsend(data, dest, 1),
    "Bsend_init": lambda comm, data, dest: comm.Bsend_init(data, dest, 1).Start(),
    "bsend": lambda comm, data, dest: comm.bsend(data.tobytes(), dest, 1),
    "freed": lambda comm, data, dest: comm.Ibsend(data, dest, 1).Free(),
    "dropped": lambda comm, data, dest: comm.Ibsend(data, dest, 1),
}


@host_only
@pytest.mark.ranks(2)
@pytest.mark.parametrize("way", BUFFERED)
def test_mpi_has_still_to_send_what_no_request_stands_for(comm, way):
    """Odd ranks go into a sum, whose kernel waits; even ones come there when they have received the message."""
    allreduce(comm)
    if is_odd(comm):
        MPI.Attach_buffer(bytearray(1 << 20))
        BUFFERED[way](comm, data_of(comm.rank, 1, 0, LARGE), partner(comm))
        allreduce(comm)
        MPI.Detach_buffer()
    else:
        time.sleep(0.2)
        if partner(comm) != comm.rank:
            if way == "bsend":
                found = np.frombuffer(comm.recv(None, partner(comm), 1), "i8")
            else:
                comm.Recv(found := np.empty(LARGE, "i8"), partner(comm), 1)
            np.testing.assert_array_equal(found, data_of(partner(comm), 1, 0, LARGE))
        allreduce(comm)


def test_a_host_array_receives_beside_a_message_that_nobody_receives_yet(comm):
    """The library keeps that message, since its request is freed; the sender of the other one waits on the host."""
    with comm.Dup() as other:
        later = Output(LARGE, "i8")
        other.Isend(put(data_of(comm.rank, 1, 0, LARGE)), comm.rank, 1).Free()
        memory = bytearray(8 * LARGE)
        request = comm.Irecv([memory, MPI.BYTE], comm.rank, 1)
        comm.Ssend(put(data_of(comm.rank, 1, 1, LARGE)), comm.rank, 1)
        comm.synchronize()
        request.Wait()
        other.Recv(later.array, comm.rank, 1)
        with comparing() as compare:
            compare(later, data_of(comm.rank, 1, 0, LARGE), "received late")
        np.testing.assert_array_equal(np.frombuffer(memory, "i8"), data_of(comm.rank, 1, 1, LARGE))


@pytest.mark.parametrize("test", ["Testsome", "Testall", "Testany"])
def test_looks_for_a_send_leave_a_receive_of_a_host_array_time(comm, test):
    """The receive is open on the rank that asks for the send alone, again and again."""
    map_peers(comm)
    memory, end = bytearray(8 * LARGE + 1024), time.monotonic() + 10
    request = comm.Irecv([memory, MPI.BYTE], comm.rank, 1)
    send = comm.Isend(put(data_of(comm.rank, 1, 0, LARGE)), comm.rank, 1)
    while getattr(Request, test)([send]) in (False, [], (MPI.UNDEFINED, False)) and time.monotonic() < end:
        pass
    is_over = time.monotonic() < end
    request.Wait()
    send.Wait()
    assert_everywhere(comm, is_over)
    np.testing.assert_array_equal(np.frombuffer(memory, "i8", LARGE), data_of(comm.rank, 1, 0, LARGE))


def test_storm(comm):
    """Every rank has receives from every rank open; ranks meet in between, and wait in some order."""
    shared, own = np.random.default_rng(3), np.random.default_rng(comm.rank)
    ways = ["host barrier", "Allreduce", "device barrier", "mpi4py's allreduce"]
    with comparing() as compare:
        for index in range(25):
            counts = shared.choice([0, 5, LARGE, LONG], (comm.size, comm.size))
            recvs = [Output(int(count), "i8") for count in counts[:, comm.rank]]
            receiving = [comm.Irecv(recv.array, source, index) for source, recv in enumerate(recvs)]
            sending = [
                comm.Isend(put(data_of(comm.rank, index, 0, int(count))), dest, index)
                for dest, count in enumerate(counts[comm.rank])
            ]
            for way in shared.choice(ways, 2):
                WAYS[way](comm)
                if own.integers(3) == 0:
                    time.sleep(0.003)
            requests = receiving + sending
            for i in own.permutation(len(requests)):
                requests[i].Wait()
            for source, recv in enumerate(recvs):
                compare(recv, data_of(source, index, 0, recv.array.size), f"round {index}, from {source}")


@gpu_only
@pytest.mark.parametrize("look", ["Test", "Sendrecv", "Recv"])
def test_a_message_behind_a_collective(comm, look):
    """Its envelope is here before its data can be, which comes after a collective that needs this rank, too."""
    pair = comm.Split(comm.rank // 2)
    if any(MPI.Comm.allgather(comm, pair.spanning is not None)):
        pytest.skip("between nodes a send waits on the host for what its stream has")
    other, recv, small = 1 - pair.rank, Output(LONG, "i8"), Output(SHORT, "i8")
    x, y, sent = xp.ones(4, "f4"), xp.zeros(4, "f4"), put(data_of(pair.rank, 1, 0, LONG))
    map_peers(pair)
    pair.Allreduce(x, y)
    y[...] = 0
    synchronize()
    if pair.rank == 0 and pair.size == 2:
        request = pair.Irecv(recv.array, other, 1)
        MPI.Comm.Barrier(pair)
        if look == "Test":
            assert not request.Test()
        elif look == "Sendrecv":
            pair.Sendrecv(sent[:SHORT], 0, 2, small.array, 0, 2)
        else:
            itself = pair.Isend(sent[:SHORT], 0, 2)
            pair.Recv(small.array, 0, 2)
            itself.Wait()
        pair.Allreduce(x, y)
        request.Wait()
        pair.synchronize()
    elif pair.size == 2:
        pair.Allreduce(x, y)
        request = pair.Isend(sent, other, 1)
        MPI.Comm.Barrier(pair)
        request.Wait()
        pair.synchronize()
    else:
        pair.Allreduce(x, y)
    with comparing() as compare:
        if pair.rank == 0 and pair.size == 2:
            compare(recv, data_of(other, 1, 0, LONG), look)
            if look != "Test":
                compare(small, data_of(0, 1, 0, LONG)[:SHORT], f"{look} with itself")
    assert get(y).tolist() == [pair.size] * 4
    pair.Free()


@gpu_only
@pytest.mark.parametrize("capturing", [False, True])
def test_streams(comm, capturing):
    """Receives on two streams, and collectives that get behind them on both; one is then captured, and left alone."""
    other, streams = partner(comm), [xp.cuda.Stream(non_blocking=True) for _ in range(2)]
    recvs = [Output(LONG, "i8") for _ in streams]
    x, y = xp.ones(4, "f4"), xp.empty(4, "f4")
    allreduce(comm)
    synchronize()
    requests = []
    for index, (stream, recv) in enumerate(zip(streams, recvs, strict=True)):
        with stream:
            if receives(comm):
                requests.append(comm.Irecv(recv.array, other, index))
            if is_odd(comm):
                comm.Send(put(data_of(comm.rank, index, 0, LONG)), other, index)
            elif other == comm.rank:
                requests.append(comm.Isend(put(data_of(comm.rank, index, 0, LONG)), other, index))
    if is_odd(comm):
        comm.synchronize()
    with streams[0]:
        if capturing:
            streams[0].begin_capture()
            comm.Allreduce(x, y)
            graph = streams[0].end_capture()
            graph.launch(streams[1])
            streams[1].synchronize()
        else:
            comm.Allreduce(x, y)
    with streams[1]:
        comm.Allreduce(x, y)
        Request.Waitall(requests)
        copies = [recv.array.copy() for recv in recvs]
    with comparing() as compare:
        for index, copy in enumerate(copies if receives(comm) else []):
            compare(copy, data_of(other, index, 0, LONG), f"stream {index}")


@pytest.mark.skipif(MPI.COMM_WORLD.size == 1, reason="one rank sends to itself")
def test_mpi_has_sent_a_short_message_before_its_receiver_calls(comm, monkeypatch):
    """So the send leaves nothing that later calls, or the monitor thread, would have to see to."""
    pending_sends, kept, array = comm.endpoint.context.receives.pending_sends, [], put(np.zeros(SHORT))
    monkeypatch.setattr(pending_sends, "keep", lambda *message: kept.append(message))
    MPI.Comm.Barrier(comm)
    if is_odd(comm):
        for _ in range(4):
            comm.Send(array, partner(comm), 1)
    else:
        time.sleep(0.3)  # not in MPI
    assert_everywhere(comm, not kept, f"{kept}")
    for _ in range(4 if partner(comm) != comm.rank and not is_odd(comm) else 0):
        comm.Recv(array, partner(comm), 1)
