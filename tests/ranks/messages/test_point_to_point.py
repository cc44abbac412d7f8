"""Messages between two ranks arrive whole by every transport; wrong ones are refused."""

import contextlib
import itertools
import time
from functools import partial

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx import PeerTimeout, Request, events
from pyncclx.messages import context
from pyncclx.messages.endpoint import Endpoint
from pyncclx.messages.envelope import inline_nbytes
from pyncclx.messages.memory import bounce, headers
from pyncclx.messages.receive import Incoming
from support.arrays import HOST, Interface, Output, get, gpu_only, put, synchronize, xp
from support.everywhere import raises_everywhere
from support.labelled_messages import EAGER, LARGE, data_of, end_unread, map_peers, map_peers_if
from support.reference import NODES, comparing
from support.reversed_ranks import ring

SIZES = [0, 1, 3, 4, 5, 1000, EAGER, EAGER + 1, 5 * EAGER + 3]


@pytest.mark.parametrize("count", SIZES)
def test_ring(comm, count):
    """Every rank sends to the right, from and to addresses of any alignment; the status has source, tag and count."""
    right, left = ring(comm)
    with comparing() as compare:
        for index, (here, there) in enumerate([(0, 0), (0, 0), (1, 0), (0, 3), (1, 1)]):
            recv, status = Output(count, "i8", there), MPI.Status()
            comm.Sendrecv(put(data_of(comm.rank, 5, index, count), here), right, 5, recv.array, left, 5, status)
            compare(recv, data_of(left, 5, index, count), f"call {index}")
            assert (status.source, status.tag, status.Get_count(MPI.INT64_T)) == (left, 5, count)
            assert status.Get_error() == MPI.SUCCESS


@pytest.mark.parametrize("offset", [1, 2, 3, 4, 8, 15])
def test_bytes_of_any_alignment(comm, offset):
    map_peers(comm)
    right, left = ring(comm)
    with comparing() as compare:
        for count in (1, 15, 16, 17, 999, bounce.SLOT_NBYTES + offset):
            recv = Output(count, "u1", (offset * 3) % 16)
            comm.Sendrecv(put((np.arange(count) % 251 + comm.rank).astype("u1"), offset), right, 0, recv.array, left, 0)
            compare(recv, (np.arange(count) % 251 + left).astype("u1"), f"{count} bytes")


@gpu_only
@pytest.mark.parametrize("count", [EAGER + 1, 5 * EAGER + 3])
def test_memory_that_no_other_process_can_open(comm, count, monkeypatch):
    """A kernel fetches the data from a copy, which the sender keeps until then, although the array is used again."""
    map_peers(comm)
    right, left = ring(comm)
    with xp.cuda.using_allocator(xp.cuda.MemoryAsyncPool().malloc):
        sent = [put(data_of(comm.rank, 3, index, count)) for index in range(3)]
    received = [Output(count, "i8") for _ in sent]
    requests = [comm.Irecv(each.array, left, 3) for each in received]
    ways = []
    with monkeypatch.context() as patched:
        patched.setattr(events, "listeners", [lambda event: ways.append(event.how)])
        requests += [comm.Isend(each, right, 3) for each in sent]
    Request.Waitall(requests)
    for each in sent:
        each[:] = -1
    with comparing() as compare:
        for index, each in enumerate(received):
            compare(each, data_of(left, 3, index, count), f"message {index}")
    assert set(ways) == {events.NATIVE}


@pytest.mark.ranks(2)
@pytest.mark.parametrize("name", ["Send", "Ssend", "Isend", "Issend"])
@pytest.mark.parametrize("count", [0, 10, EAGER, LARGE])
def test_every_send(comm, name, count):
    """Rank 0 sends to each; afterwards it writes to the buffer, which is its own again."""
    map_peers(comm)
    if comm.rank == 0:
        for dest in range(1, comm.size):
            for index in range(3):
                send = put(data_of(0, 7, index, count))
                request = getattr(comm, name)(send, dest, 7)
                if request is not None:
                    request.Wait()
                send[...] = -1
    with comparing() as compare:
        for index in range(3 if comm.rank else 0):
            recv = Output(count, "i8")
            comm.Recv(recv.array, 0, 7)
            compare(recv, data_of(0, 7, index, count), f"message {index}")


@pytest.mark.parametrize("count", SIZES)
def test_self(comm, count):
    """A rank is its own peer."""
    recv = Output(count, "i8")
    request = comm.Isend(put(data_of(comm.rank, 2, 0, count)), comm.rank, 2)
    comm.Recv(recv.array, comm.rank, 2)
    request.Wait()
    with comparing() as compare:
        compare(recv, data_of(comm.rank, 2, 0, count), "to myself")


def test_nobody(comm):
    """MPI.PROC_NULL takes all and gives nothing."""
    array = put(np.full(4, 7, "i8"))
    comm.Send(array, MPI.PROC_NULL)
    assert comm.Isend(array, MPI.PROC_NULL).Wait()
    for receive in (
        lambda status: comm.Recv(array, MPI.PROC_NULL, status=status),
        lambda status: comm.Irecv(array, MPI.PROC_NULL).Wait(status),
        lambda status: comm.Sendrecv(array, MPI.PROC_NULL, 0, array, MPI.PROC_NULL, 0, status),
    ):
        status = MPI.Status()
        receive(status)
        assert (status.source, status.tag, status.Get_count(MPI.BYTE)) == (MPI.PROC_NULL, MPI.ANY_TAG, 0)
    assert get(array).tolist() == [7] * 4


@pytest.mark.parametrize("count", SIZES)
def test_ring_without_waiting(comm, count):
    """The same by requests, several at once; one buffer is overwritten by what arrives."""
    right, left = ring(comm)
    recvs, status = [Output(count, "i8", offset) for offset in (0, 1, 0)], [MPI.Status() for _ in range(3)]
    recvs[2].fill(data_of(comm.rank, 2, 0, count))
    requests = [
        comm.Isendrecv(put(data_of(comm.rank, tag, 0, count)), right, tag, recvs[tag].array, left, tag)
        for tag in (0, 1)
    ]
    requests.append(comm.Isendrecv_replace(recvs[2].array, right, 2, left, 2))
    Request.Waitall(requests, status)
    with comparing() as compare:
        for tag in range(3):
            compare(recvs[tag], data_of(left, tag, 0, count), f"tag {tag}")
            assert (status[tag].source, status[tag].tag, status[tag].Get_count(MPI.INT64_T)) == (left, tag, count)


@pytest.mark.parametrize("name", ["Sendrecv", "Isendrecv"])
@pytest.mark.parametrize("here", ["device", "host"])
def test_one_on_the_host(comm, name, here):
    """All send of the device and receive on the host, or the other way round."""
    right, left = ring(comm)
    send, back, status = data_of(comm.rank, 6, 0, 90), Output(90, "i8"), MPI.Status()
    there = bytearray(8 * 90 + 400)
    sends, recvs = (put(send), there) if here == "device" else (send.tobytes(), back.array)
    request = getattr(comm, name)(sends, right, 6, recvs, left, 6, *([status] if name == "Sendrecv" else []))
    if request is not None:
        assert request.Wait(status)
    assert (status.source, status.tag, status.Get_count(MPI.INT64_T)) == (left, 6, 90)
    got = np.frombuffer(there[: 8 * 90], "i8") if here == "device" else get(back.array)
    assert got.tolist() == data_of(left, 6, 0, 90).tolist()
    assert here == "device" or not back.damage()


@pytest.mark.parametrize("count", SIZES)
def test_replace(comm, count):
    """What is sent is what was there, though every rank's buffer is overwritten at the same time."""
    right, left = ring(comm)
    buffer = Output(count, "i8").fill(data_of(comm.rank, 3, 0, count))
    with comparing() as compare:
        for index in range(1, 4):
            status = MPI.Status()
            comm.Sendrecv_replace(buffer.array, right, 3, left, 3, status)
            compare(buffer, data_of((comm.rank - index) % comm.size, 3, 0, count), f"after {index} steps")
            assert (status.source, status.Get_count(MPI.INT64_T)) == (left, count)


@pytest.mark.ranks(2)
def test_parts_of_arrays(comm):
    """Counts, displacements and datatypes of buffer specs; Fortran order."""
    right, left = ring(comm)
    values, recv = data_of(comm.rank, 4, 0, 100), Output(100, "i8")
    comm.Sendrecv([put(values), (20, 30), MPI.INT64_T], right, 0, [recv.array, 20, 50, MPI.INT64_T], left, 0)
    matrix = np.asfortranarray(data_of(comm.rank, 4, 1, 12).reshape(3, 4))
    got = xp.zeros((3, 4), "i8", order="F")
    comm.Sendrecv(xp.asarray(matrix, order="F"), right, 0, got, left, 0)
    assert get(recv.array)[50:70].tolist() == data_of(left, 4, 0, 100)[30:50].tolist()
    assert not recv.damage()
    assert get(got).tolist() == data_of(left, 4, 1, 12).reshape(3, 4).tolist()


def test_a_short_message_in_a_long_buffer(comm):
    """Buffers of more bytes than MPI's int counts."""
    recv, status = xp.empty((1 << 31) + 5, "u1"), MPI.Status()
    request = comm.Irecv(recv, comm.rank, 1)
    comm.Send(put(np.arange(5, dtype="u1")), comm.rank, 1)
    request.Wait(status)
    assert status.Get_count(MPI.BYTE) == 5
    assert get(recv[:5]).tolist() == list(range(5))


@gpu_only
def test_a_message_of_more_than_2_gib(comm):
    map_peers(comm)
    right, left = ring(comm)
    send = xp.arange((1 << 28) + 3, dtype="i8") + (comm.rank << 40)
    recv, status = xp.empty_like(send), MPI.Status()
    comm.Sendrecv(send, right, 1, recv, left, 1, status)
    send += (left - comm.rank) << 40
    assert bool((recv == send).all())
    assert status.Get_count(MPI.INT64_T) == send.size


@pytest.mark.ranks(2)
def test_a_window_is_sent_from_where_it_is(comm):
    """Arrays from comm.Alloc, which peers have mapped already."""
    map_peers(comm)
    right, left = ring(comm)
    send, recv = comm.Alloc(LARGE, "i8"), Output(LARGE, "i8")
    with comparing() as compare:
        for index in range(3):
            send[...] = put(data_of(comm.rank, 6, index, LARGE))
            request = comm.Isend(send[index:], right, 6)
            comm.Recv(recv.array[index:], left, 6)
            request.Wait()
            compare(recv.array[index:], data_of(left, 6, index, LARGE)[index:], f"message {index}")
            synchronize()


@pytest.mark.parametrize("count", [2, EAGER, LARGE])
@pytest.mark.parametrize("known", [False, True], ids=["strangers", "acquainted"])
def test_truncation(comm, count, known, monkeypatch):
    """A message that is too long raises at the receiver, is used up, and its sender goes on."""
    own = comm.Dup()
    map_peers_if(own, known, monkeypatch)
    right, left = ring(own)
    recv = Output(count - 1, "i8")
    request = own.Isend(put(data_of(own.rank, 1, 0, count)), right, 1)
    with raises_everywhere(own, MPI.Exception, match=f"rank {left} sent .* tag 1") as raised:
        own.Recv(recv.array, left, 1)
    assert raised.value.Get_error_class() == MPI.ERR_TRUNCATE
    request.Wait()
    assert not recv.damage()
    after = Output(count, "i8")
    own.Sendrecv(put(data_of(own.rank, 2, 0, count)), right, 2, after.array, left, 2)
    with comparing() as compare:
        compare(after, data_of(left, 2, 0, count), "what comes after it")
    own.Free()


def test_an_error_of_what_brings_the_data(comm, monkeypatch):
    """It belongs to the call that receives; the message is used up."""

    def refuse(*_):
        raise RuntimeError("no kernel")

    own = comm.Dup()
    right, left = ring(own)
    request = own.Isend(put(data_of(own.rank, 1, 0, 2)), right, 1)
    recv = Output(2, "i8")
    with monkeypatch.context() as patch, raises_everywhere(own, RuntimeError, match="no kernel"):
        patch.setattr(Incoming, "_begin_launch", refuse)
        own.Recv(recv.array, left, 1)
    request.Wait()
    own.Sendrecv(put(data_of(own.rank, 2, 0, 2)), right, 1, recv.array, left, 1)
    with comparing() as compare:
        compare(recv, data_of(left, 2, 0, 2), "what comes after it")
    end_unread(own)
    own.Free()


HOST_RECEIVES = {
    "Recv": lambda comm, room, source: comm.Recv(room, source, 1),
    "Irecv": lambda comm, room, source: comm.Irecv(room, source, 1).Wait(),
    "Recv_init": lambda comm, room, source: MPI.Request.Wait(started(comm.Recv_init(room, source, 1))),
    "Probe": lambda comm, room, source: (comm.Probe(source, 1), comm.Recv(room, source, 1)),
}


def started(request):
    request.Start()
    return request


@pytest.mark.parametrize("comm", ["reversed" if MPI.COMM_WORLD.size > 1 else "dup"], indirect=True)
@pytest.mark.parametrize("name", HOST_RECEIVES)
def test_a_host_array_with_room_for_the_data_alone(comm, name, monkeypatch):
    """A device array's message is longer, so MPI refuses it; what lies behind the host array stays as it is.

    Between nodes it is the data alone, which is received.
    """
    map_peers_if(comm, False, monkeypatch)
    right, left = ring(comm)
    spoilt, copied, copy = [], [], Endpoint.copy
    monkeypatch.setattr(Endpoint, "copy", lambda *arguments: (copied.append(arguments[3]), copy(*arguments)))
    for dest, source in ((right, left), (comm.rank, comm.rank)):
        for nbytes in (8, 2000, 8000, 8 * LARGE):
            memory = bytearray(b"7" * (nbytes + 1000))
            has_envelope = not comm.endpoint.peers.are_far(source)
            request = comm.Isend(put(np.zeros(nbytes, "u1")), dest, 1)
            receive = partial(HOST_RECEIVES[name], comm, [memoryview(memory)[:nbytes], MPI.BYTE], source)
            if has_envelope:
                with pytest.raises(MPI.Exception) as raised:
                    receive()
                assert raised.value.Get_error_class() == MPI.ERR_TRUNCATE
                assert not copied, "MPI has received a part of the data"
            else:
                receive()
                assert not any(memory[:nbytes])
            request.Wait()
            if memory[nbytes:] != b"7" * 1000:
                spoilt.append(f"{nbytes} bytes from rank {source}")
    assert not spoilt


def test_bad_arguments(comm):
    """What mpi4py refuses is refused before anything is sent."""
    array = xp.zeros(4, "i8")
    for call, error_class in (
        (lambda: comm.Send(array, comm.size), MPI.ERR_RANK),
        (lambda: comm.Send(array, -7), MPI.ERR_RANK),
        (lambda: comm.Recv(array, comm.size), MPI.ERR_RANK),
        (lambda: comm.Send(array, 0, -3), MPI.ERR_TAG),
        (lambda: comm.Irecv(array, 0, -3), MPI.ERR_TAG),
        (lambda: comm.Sendrecv(array, comm.size, 0, array.copy(), 0, 0), MPI.ERR_RANK),
        (lambda: comm.Sendrecv(array, 0, 0, array.copy(), 0, -9), MPI.ERR_TAG),
        (lambda: comm.Isendrecv(array, comm.size, 0, array.copy(), 0, 0), MPI.ERR_RANK),
        (lambda: comm.Isendrecv_replace(array, 0, -3, 0, 0), MPI.ERR_TAG),
        (lambda: comm.Isendrecv(bytearray(32), comm.size, 0, array, 0, 0), MPI.ERR_RANK),
        (lambda: comm.Sendrecv(array, 0, 0, bytearray(432), comm.size, 0), MPI.ERR_RANK),
    ):
        with pytest.raises(MPI.Exception) as raised:
            call()
        assert raised.value.Get_error_class() == error_class
    with pytest.raises(BufferError, match="not contiguous"):
        comm.Send(xp.zeros((4, 4), "i8")[:, 1], 0)
    with pytest.raises(BufferError, match="read-only"):
        comm.Recv(Interface(array, readonly=True), 0)
    for call in (comm.Sendrecv, comm.Isendrecv):
        with pytest.raises(BufferError, match="read-only"):
            call(array, 0, 0, Interface(array, readonly=True), 0, 0)
    assert comm.endpoint.context.receives.idle


@pytest.mark.ranks(2)
@pytest.mark.one_node
@pytest.mark.parametrize("kind", ["send", "receive", "beside an open receive"])
def test_a_persistent_request_starts_no_more_after_a_wait_in_vain(monkeypatch, kind):
    """Otherwise the data of all its later messages would be wrong, and no call would say so.

    While a receive is open, the host waits first, and no longer than the timeout.
    """
    monkeypatch.setenv("PYNCCLX_TIMEOUT", "0.5")
    comm = pyncclx.Communicator().Dup()
    map_peers(comm)
    dest = comm.size - 1
    x, y = xp.zeros(LARGE, "i8"), xp.zeros(9, "i8")
    if comm.rank == 0:
        request = comm.Send_init(y, dest, 12) if kind == "send" else comm.Recv_init(y, dest, 12)
        opened = comm.Irecv(xp.zeros(9, "i8"), dest, 13) if kind.startswith("beside") else MPI.REQUEST_NULL
        comm.Send(x, dest, 11)
        synchronize()
        for start in (request.Start, lambda: pyncclx.Prequest.Startall([request])):
            with pytest.raises(PeerTimeout, match=f"Send with tag 11: rank 0 timed out waiting for rank {dest}"):
                start()
        assert not request.is_active
        request.Free()
        if opened:
            opened.Cancel()
            opened.Wait()
        assert comm.endpoint.context.receives.idle
    MPI.Comm.Barrier(comm)
    if comm.rank == dest:
        MPI.Comm.Recv(comm, bytearray(inline_nbytes(LARGE * 8)), 0, 11)  # nothing is left behind
    end_unread(comm)
    comm.Free()


@pytest.mark.ranks(2)
def test_nobody_receives(monkeypatch):
    """A long send gives up after the timeout; the error names who waited for whom, and others go on.

    Inside a node its stream waits; between nodes it does so itself, and raises.
    """
    other = pyncclx.Communicator()
    map_peers(other)  # with the usual timeout
    monkeypatch.setenv("PYNCCLX_TIMEOUT", "0.5")
    comm = pyncclx.Communicator().Dup()
    map_peers(comm)
    dest = comm.size - 1
    in_vain = f"Send with tag 11: rank 0 timed out waiting for rank {dest}"
    if comm.rank == 0:
        began = time.monotonic()
        with pytest.raises(PeerTimeout, match=in_vain) if NODES else contextlib.nullcontext():
            comm.Send(put(data_of(0, 11, 0, LARGE)), dest, 11)
            synchronize()
        assert 0.4 < time.monotonic() - began < 30
        for call in (comm.synchronize, lambda: comm.Send(xp.zeros(1, "i8"), dest), comm.synchronize):
            with pytest.raises(PeerTimeout, match=in_vain):
                call()
    MPI.Comm.Barrier(comm)
    right, left = ring(other)
    recv = Output(LARGE, "i8")
    other.Sendrecv(put(data_of(other.rank, 1, 0, LARGE)), right, 1, recv.array, left, 1)
    with comparing() as compare:
        compare(recv, data_of(left, 1, 0, LARGE), "another communicator")
    other.synchronize()
    if comm.rank == dest:
        MPI.Comm.Recv(comm, bytearray(inline_nbytes(LARGE * 8)), 0, 11)  # nothing is left behind
    end_unread(comm)
    comm.Free()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("known", [False, True], ids=["strangers", "acquainted"])
@pytest.mark.parametrize("count", [0, 100, LARGE])
def test_host_arrays_meet_device_arrays(comm, count, known, monkeypatch):
    """A host array's receive takes a device array's message, and the other way round."""
    own = comm.Dup()
    map_peers_if(own, known, monkeypatch)
    right, left = ring(own)
    nbytes = count * 8
    recv, received, status = Output(count, "i8"), bytearray(inline_nbytes(nbytes)), MPI.Status()
    requests = [own.Isend(put(data_of(own.rank, 1, 0, count)), right, 1)]
    own.Recv(received, left, 1, status)
    requests.append(own.Isend(bytearray(data_of(own.rank, 2, 0, count).tobytes()), right, 2))
    assert (status.source, status.tag, status.Get_count(MPI.BYTE)) == (left, 1, nbytes)
    own.Recv(recv.array, left, 2, status)
    assert (status.source, status.tag, status.Get_count(MPI.INT64_T)) == (left, 2, count)
    Request.Waitall(requests)
    assert bytes(received[:nbytes]) == data_of(left, 1, 0, count).tobytes()
    waits = lambda request: request.Wait(status), lambda request: Request.Waitall([request], [status])
    for wait, dtype in itertools.product(waits, ("u1", "c16")):  # in a view: on the host device arrays are the device's
        received = memoryview(np.zeros(inline_nbytes(nbytes) // np.dtype(dtype).itemsize, dtype))
        request = own.Irecv(received, left, 3)
        sent = own.Isend(put(data_of(own.rank, 3, 0, count)), right, 3)
        wait(request)
        sent.Wait()
        assert (status.source, status.Get_count(MPI.BYTE)) == (left, nbytes)
        assert received.tobytes()[:nbytes] == data_of(left, 3, 0, count).tobytes()
    has_envelope, received = not own.endpoint.peers.are_far(left), bytearray(16)  # for which there is no room
    own.Send(put(data_of(own.rank, 4, 0, 1)), right, 4)
    if has_envelope:
        with pytest.raises(MPI.Exception, match="device array") as raised:
            own.Recv(received, left, 4)
        assert raised.value.Get_error_class() == MPI.ERR_TRUNCATE
    else:
        own.Recv(received, left, 4)
        assert received[:8] == data_of(left, 4, 0, 1).tobytes()
    with comparing() as compare:
        compare(recv, data_of(left, 2, 0, count), "a host array's message")
    own.Free()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("first", ["receive", "send"])
@pytest.mark.parametrize("count", [100, LARGE])
def test_all_receive_on_the_host(comm, first, count):
    """All ranks send long device arrays to host arrays, and wait for everything at once; messages to devices beside."""
    right, left = ring(comm)
    nbytes = count * 8
    for call in range(3):
        received = memoryview(bytearray(inline_nbytes(nbytes)))
        recv, statuses = Output(count, "i8"), [MPI.Status() for _ in range(2)]
        requests = [comm.Irecv(received, left, 1), comm.Irecv(recv.array, left, 2)]
        sends = [comm.Isend(put(data_of(comm.rank, tag, call, count)), right, tag) for tag in (1, 2)]
        if first == "receive":
            Request.Waitall(requests + sends, statuses)
        else:
            statuses[:0] = MPI.Status(), MPI.Status()
            Request.Waitall(sends + requests, statuses)
            del statuses[:2]
        assert not any(requests + sends)
        known = [(status.source, status.tag, status.Get_count(MPI.BYTE)) for status in statuses[:2]]
        assert known == [(left, 1, nbytes), (left, 2, nbytes)]
        assert received[:nbytes] == data_of(left, 1, call, count).tobytes(), f"rank {comm.rank}, call {call}"
        with comparing() as compare:
            compare(recv, data_of(left, 2, call, count), f"beside a host array, call {call}")


@pytest.mark.ranks(2)
def test_one_of_all_is_too_short(comm):
    """What goes wrong with a host array is raised when all is over, and nothing else is lost."""
    right, left = ring(comm)
    alone = comm.size == 1  # Open MPI cuts what a process sends to itself without an error
    recv = Output(LARGE, "i8")
    requests = [comm.Irecv(bytearray(7), left, 1), comm.Irecv(recv.array, left, 2)]
    requests += [comm.Isend(bytearray(8), right, 1), comm.Isend(put(data_of(comm.rank, 2, 0, LARGE)), right, 2)]
    with contextlib.suppress(MPI.Exception) if alone else pytest.raises(MPI.Exception) as raised:
        Request.Waitall(requests)
    assert alone or raised.value.Get_error_class() == MPI.ERR_IN_STATUS
    assert alone or raised.value.__cause__.Get_error_class() == MPI.ERR_TRUNCATE
    assert not any(requests)
    with comparing() as compare:
        compare(recv, data_of(left, 2, 0, LARGE), "beside what was too short")


def test_blocking_on_the_host(comm):
    """With blocking = "host" a call returns when the data is there."""
    right, left = ring(comm)
    comm.blocking = "host"
    try:
        for count in (10, LARGE):
            recv = Output(count, "i8")
            request = comm.Isend(put(data_of(comm.rank, 1, 0, count)), right, 1)
            comm.Recv(recv.array, left, 1)
            if not HOST:
                assert xp.cuda.get_current_stream().done
            request.Wait()
            assert recv.read().tobytes() == data_of(left, 1, 0, count).tobytes()
    finally:
        comm.blocking = "stream"


@pytest.mark.ranks(2)
def test_between_two_groups():
    """On an intercommunicator ranks are those of the other group."""
    world = pyncclx.Communicator()
    group = world.Split(world.rank % 2)
    inter = group.Create_intercomm(0, world, 1 - world.rank % 2, 5)
    count = min(inter.size, inter.remote_size)
    with comparing() as compare:
        for index, length in enumerate((3, LARGE) if inter.rank < count else ()):
            recv, status = Output(length, "i8"), MPI.Status()
            inter.Sendrecv(
                put(data_of(world.rank, 1, index, length)), inter.rank, 1, recv.array, MPI.ANY_SOURCE, 1, status
            )
            compare(recv, data_of(world.rank ^ 1, 1, index, length), f"message {index}")
            assert status.source == inter.rank
    inter.Free()
    group.Free()


def test_memory_is_reported():
    comm = pyncclx.Communicator()
    comm.Sendrecv(xp.zeros(1), comm.rank, 0, xp.ones(1), comm.rank, 0)
    slots = context.CONTEXT.get().arena.nbytes
    assert comm.memory_report()["messages"] - slots == bounce.NBYTES <= 4 << 20
    request = comm.Send_init(xp.zeros(1), MPI.PROC_NULL)
    request.Start()
    assert comm.memory_report()["messages"] == bounce.NBYTES + slots  # a first message takes them
    request.Free()


def test_many_communicators():
    """An endpoint is given back with its communicator."""
    for _ in range(headers.HEADERS + 5):
        comm = pyncclx.Communicator(MPI.COMM_SELF).Dup()
        comm.Sendrecv(xp.zeros(1), 0, 0, xp.ones(1), 0, 0)
        comm.Free()
