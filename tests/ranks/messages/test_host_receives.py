"""Host arrays that receive device arrays' messages, by every way to receive and to complete there is."""

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx import Request
from pyncclx.errors import NotSupported
from pyncclx.messages import calls
from pyncclx.messages.envelope import SHORT_NBYTES
from pyncclx.staging import requests as staging
from support.alarms import raising
from support.arrays import host_only, own_gpu, put
from support.everywhere import assert_everywhere
from support.labelled_messages import EAGER, LARGE, data_of, map_peers
from support.reversed_ranks import ring

ROOM = 1000  # bytes for an envelope
POISON = 0xA5

pytestmark = pytest.mark.parametrize("comm", ["reversed" if MPI.COMM_WORLD.size > 1 else "dup"], indirect=True)


def until(test):
    """Ask until the answer is true, for some seconds."""
    deadline = time.monotonic() + 10
    while not test():
        assert time.monotonic() < deadline, "never over"
        time.sleep(0)
    return True


def first(result):
    return result[0]


WAYS = {
    "Wait": lambda request, status: request.Wait(status),
    "Test": lambda request, status: until(lambda: request.Test(status)),
    "wait": lambda request, status: request.wait(status),
    "test": lambda request, status: until(lambda: request.test(status)[0]),
    "Get_status": lambda request, status: until(lambda: request.Get_status(status)) and request.Wait(),
    "Waitall": lambda request, status: Request.Waitall([request], [status]),
    "waitall": lambda request, status: Request.waitall([request], [status]) == [None] or pytest.fail("an object"),
    "Testall": lambda request, status: until(lambda: Request.Testall([request], [status])),
    "testall": lambda request, status: until(lambda: first(Request.testall([request], [status]))),
    "Waitany": lambda request, status: Request.Waitany([request], status) == 0 or pytest.fail("another index"),
    "waitany": lambda request, status: Request.waitany([request], status) == (0, None) or pytest.fail("another index"),
    "Testany": lambda request, status: until(lambda: Request.Testany([request], status)[1]),
    "testany": lambda request, status: until(lambda: Request.testany([request], status)[1]),
    "Waitsome": lambda request, status: Request.Waitsome([request], [status]) == [0] or pytest.fail("other indices"),
    "waitsome": lambda request, status: Request.waitsome([request], [status])[0] == [0] or pytest.fail("other indices"),
}
OF_MPI = {  # the status has the length of what MPI has received
    "mpi4py's Waitall": lambda request: MPI.Request.Waitall([request]),
    "mpi4py's waitall": lambda request: MPI.Request.waitall([request]),
    "mpi4py's Waitany": lambda request: MPI.Request.Waitany([request]),
    "mpi4py's Testsome": lambda request: until(lambda: MPI.Request.Testsome([request]) == [0]),
    "mpi4py's Wait": MPI.Request.Wait,
}


@pytest.mark.parametrize("count", [0, 1, 63, EAGER, LARGE])
@pytest.mark.parametrize("name", [*WAYS, *OF_MPI])
def test_every_way_to_complete(comm, name, count):
    map_peers(comm)
    right, left = ring(comm)
    memory, status = bytearray([POISON]) * (8 * count + ROOM), MPI.Status()
    request = comm.Irecv([memory, MPI.BYTE], left, 3)
    sending = comm.Isend(put(data_of(comm.rank, 3, 0, count)), right, 3)
    if name in WAYS:
        WAYS[name](request, status)
        assert (status.source, status.tag, status.Get_count(MPI.BYTE)) == (left, 3, 8 * count)
    else:
        OF_MPI[name](request)
    sending.Wait()
    assert not request
    np.testing.assert_array_equal(np.frombuffer(memory, "i8", count), data_of(left, 3, 0, count))
    assert memory[-8:] == bytes([POISON]) * 8
    memory.clear()  # which Python refuses while anything refers to the memory


@pytest.mark.parametrize("count", [63, LARGE])
@pytest.mark.parametrize("name", ["Wait", "Test", "Waitall", "Testany"])
@pytest.mark.parametrize("kind", [pyncclx.Request, staging.Request])
def test_copies_of_requests(comm, kind, name, count):
    """The program completes a copy, and keeps the request."""
    map_peers(comm)
    right, left = ring(comm)
    memory, status = bytearray(8 * count + ROOM), MPI.Status()
    request = comm.Irecv([memory, MPI.BYTE], left, 3)
    copy = kind(request)
    sending = comm.Isend(put(data_of(comm.rank, 3, 0, count)), right, 3)
    WAYS[name](copy, status)
    sending.Wait()
    assert not copy
    assert (status.source, status.tag, status.Get_count(MPI.BYTE)) == (left, 3, 8 * count)
    np.testing.assert_array_equal(np.frombuffer(memory, "i8", count), data_of(left, 3, 0, count))
    del request


@pytest.mark.parametrize("kind", [staging.Request, staging.Prequest])
def test_copies_of_persistent_requests(comm, kind):
    map_peers(comm)
    right, left = ring(comm)
    memory = bytearray(8 * LARGE + ROOM)
    request = comm.Recv_init([memory, MPI.BYTE], left, 3)
    for call in range(2):
        request.Start()
        sending = comm.Isend(put(data_of(comm.rank, 3, call, LARGE)), right, 3)
        kind(request).Wait()
        sending.Wait()
        np.testing.assert_array_equal(np.frombuffer(memory, "i8", LARGE), data_of(left, 3, call, LARGE))
    request.Free()


def test_what_an_empty_message_leaves_is_data(comm):
    """Memory that an envelope was in can be sent like any other."""
    right, left = ring(comm)
    memory = bytearray(ROOM)
    sending = comm.Isend(put(np.zeros(0)), right, 1)
    comm.Recv([memory, MPI.BYTE], left, 1)
    sending.Wait()
    sending, status = comm.Isend([memory, 320, MPI.BYTE], right, 1), MPI.Status()
    comm.Recv([bytearray(ROOM), MPI.BYTE], left, 1, status)
    sending.Wait()
    assert status.Get_count(MPI.BYTE) == 320


def test_a_short_message_changes_few_bytes_of_its_array(comm):
    """Only those of the data and of the envelope, which MPI has transferred."""
    map_peers(comm)
    right, left = ring(comm)
    memory, data = bytearray([POISON] * ROOM), data_of(comm.rank, 1, 0, 2)
    for receive in (comm.Recv, lambda *args: comm.Irecv(*args).Wait()):
        sending = comm.Isend(put(data), right, 1)
        receive([memory, MPI.BYTE], left, 1)
        sending.Wait()
        np.testing.assert_array_equal(np.frombuffer(memory, "i8", 2), data_of(left, 1, 0, 2))
        assert set(memory[SHORT_NBYTES:]) == {POISON}


LAYOUTS = {  # of 512 elements of 8 bytes each, and where they are
    "vector": (lambda: MPI.INT64_T.Create_vector(512, 1, 2), 2 * np.arange(512)),
    "downwards": (lambda: MPI.INT64_T.Create_indexed_block(1, list(range(511, -1, -1))), np.arange(511, -1, -1)),
    "resized": (
        lambda: MPI.INT32_T.Create_contiguous(2).Create_resized(0, 24).Create_contiguous(512),
        3 * np.arange(512),
    ),
}
RECEIVES = {
    "Recv": lambda comm, spec, source, status: comm.Recv(spec, source, 3, status),
    "Irecv": lambda comm, spec, source, status: comm.Irecv(spec, source, 3).Wait(status),
    "Sendrecv": lambda comm, spec, source, status: comm.Sendrecv(bytearray(8), comm.rank, 4, spec, source, 3, status),
    "Mprobe": lambda comm, spec, source, status: comm.Mprobe(source, 3).Recv(spec, status),
}


@pytest.mark.parametrize("count", [3, 100, 512])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", RECEIVES)
def test_datatypes_that_scatter(comm, name, layout, count):
    map_peers(comm)
    right, left = ring(comm)
    make, places = LAYOUTS[layout]
    datatype, whole, status = make().Commit(), np.full(1600, -1, "i8"), MPI.Status()
    memory = bytearray(whole.tobytes())
    sending = comm.Isend(put(data_of(comm.rank, 3, 0, count)), right, 3)
    RECEIVES[name](comm, [memory, 1, datatype], left, status)
    sending.Wait()
    if name == "Sendrecv":
        comm.Recv(bytearray(8), comm.rank, 4)
    found = np.frombuffer(memory, "i8")
    np.testing.assert_array_equal(found[places[:count]], data_of(left, 3, 0, count))
    assert (np.delete(found, places) == -1).all(), "gaps"
    assert status.Get_count(MPI.BYTE) == 8 * count
    datatype.Free()


@pytest.mark.parametrize("spec", [lambda memory: [memory, MPI.BYTE], lambda memory: [memory, 1, None]])
def test_a_receive_goes_on_while_its_process_waits_in_mpi(comm, spec):
    """Blocking sends of long messages end, though their receivers only wait for them after a barrier."""
    map_peers(comm)
    right, left = ring(comm)
    datatype = MPI.INT64_T.Create_vector(LARGE + 100, 1, 2).Commit()
    for step in range(2):
        memory = bytearray(16 * (LARGE + 100))
        array, *rest = spec(memory)
        is_scattered = rest[-1] is None
        request = comm.Irecv([array, 1, datatype] if is_scattered else [array, *rest], left, 1)
        comm.Send(put(data_of(comm.rank, 1, step, LARGE)), right, 1)
        comm.synchronize()
        MPI.Comm.Barrier(comm)
        request.Wait()
        found = np.frombuffer(memory, "i8")[:: 2 if is_scattered else 1][:LARGE]
        assert_everywhere(comm, (found == data_of(left, 1, step, LARGE)).all())
    datatype.Free()


def both(comm, memory, right, left, data):
    requests = [comm.Isend(data, right, 1), comm.Irecv([memory, MPI.BYTE], left, 1)]
    return lambda: Request.Testall(requests)


def exchange(comm, memory, right, left, data):
    request = comm.Isendrecv(data, right, 1, [memory, MPI.BYTE], left, 1)
    return request.Test


@pytest.mark.parametrize("begin", [both, exchange])
def test_tests_move_exchanges_on(comm, begin):
    map_peers(comm)
    right, left = ring(comm)
    memory = bytearray(8 * LARGE + ROOM)
    until(begin(comm, memory, right, left, put(data_of(comm.rank, 1, 0, LARGE))))
    np.testing.assert_array_equal(np.frombuffer(memory, "i8", LARGE), data_of(left, 1, 0, LARGE))


@pytest.mark.ranks(2)  # Open MPI cuts a message of a rank to itself without an error
@pytest.mark.parametrize("wait", [Request.Waitall, Request.waitall])
def test_an_error_leaves_no_other_receive_unread(comm, wait):
    map_peers(comm)
    right, left = ring(comm)
    memory = bytearray(8 * LARGE + ROOM)
    requests = [comm.Irecv([bytearray(8), MPI.BYTE], left, 1), comm.Irecv([memory, MPI.BYTE], left, 2)]
    sending = [
        comm.Isend([bytearray(100), MPI.BYTE], right, 1),
        comm.Isend(put(data_of(comm.rank, 2, 0, LARGE)), right, 2),
    ]
    with pytest.raises(MPI.Exception):
        wait(requests)
    Request.Waitall([*requests, *sending])  # MPI may have left the second one active
    np.testing.assert_array_equal(np.frombuffer(memory, "i8", LARGE), data_of(left, 2, 0, LARGE))


@host_only
@pytest.mark.ranks(2)
@pytest.mark.parametrize("count", [63, LARGE])
def test_test_waits_for_nothing(comm, count):
    """The data is behind a sum that this rank begins later."""
    from pyncclx import backends  # noqa: PLC0415

    map_peers(comm)
    right, left = ring(comm)
    comm.stream = backends.select().new_stream()
    x, total, memory = np.ones(100), np.zeros(100), bytearray(8 * count + ROOM)
    comm.Allreduce(x, total)
    comm.synchronize()
    if comm.rank == 0:
        comm.Allreduce(x, total)
        comm.Send(put(data_of(0, 1, 0, count)), right, 1)
    elif comm.rank == 1:
        request = comm.Irecv([memory, MPI.BYTE], left, 1)
        time.sleep(0.2)
        before = request.Test(), request.Get_status()
        comm.Allreduce(x, total)
        request.Wait()
        assert before == (False, False)
        np.testing.assert_array_equal(np.frombuffer(memory, "i8", count), data_of(0, 1, 0, count))
    else:
        comm.Allreduce(x, total)
    comm.synchronize()
    comm.stream = None


def test_inactive_persistent_requests(comm):
    """mpi4py's persistent requests do not count before they are started, in lists with others."""
    right, left = ring(comm)
    persistent = comm.Recv_init([bytearray(8), MPI.BYTE], left, 5)
    assert Request.Testany([persistent]) == (MPI.UNDEFINED, True)
    assert Request.Testsome([persistent]) is None
    y = put(np.zeros(4))
    for wait, expected in ((Request.Waitany, 1), (Request.Waitsome, [1])):
        request, sending = comm.Irecv(y, left, 7), comm.Isend(put(np.ones(4)), right, 7)
        assert wait([persistent, request]) == expected
        sending.Wait()
    persistent.Start()
    request = comm.Irecv(y, left, 7)
    sending = [comm.Isend(put(np.ones(4)), right, 7), comm.Isend([bytes(8), MPI.BYTE], right, 5)]
    found = set()
    while (index := Request.Waitany([persistent, request])) != MPI.UNDEFINED:
        assert index not in found
        found.add(index)
    assert found == {0, 1}
    Request.Waitall(sending)
    persistent.Free()


def test_more_communicators_than_headers(comm):
    """A message meets no limit on its receiver alone."""
    right, left = ring(comm)
    many = [pyncclx.Communicator(MPI.COMM_SELF).Dup() for _ in range(140 if comm.rank == 0 else 0)]
    x, y = put(np.ones(3)), put(np.zeros(3))
    for each in many:
        each.Sendrecv(x, 0, 1, y, 0, 1)
    status, found = MPI.Status(), put(np.full(200, -1.0))
    own = comm.Dup()
    sending = own.Isend(put(np.arange(100.0) + own.rank), right, 1)
    own.Recv(found, left, 1, status)
    sending.Wait()
    own.synchronize()
    assert status.Get_count(MPI.DOUBLE) == 100
    np.testing.assert_array_equal(np.asarray(found.tolist())[:100], np.arange(100.0) + left)
    for each in (*many, own):
        each.Free()


@host_only
@pytest.mark.parametrize("name", ["Recv", "Irecv"])
def test_a_receive_that_kernels_refuse_on_one_rank_alone(comm, name, monkeypatch):
    """MPI receives it, and gets an envelope."""

    def refuse(*_):
        raise NotSupported("no kernel does this")

    map_peers(comm)
    right, left = ring(comm)
    monkeypatch.setattr(calls, "Incoming", refuse)
    comm.staging, found, status = True, np.full(400, -1, "i8"), MPI.Status()
    sending = comm.Isend(put(data_of(comm.rank, 3, 0, 300)), right, 3)
    RECEIVES[name](comm, found, left, status)
    sending.Wait()
    np.testing.assert_array_equal(found[:300], data_of(left, 3, 0, 300))
    assert status.Get_count(MPI.INT64_T) == 300


REFUSED = {
    "Recv read-only": lambda comm, y, peer: comm.Recv(bytes(8 * 63 + ROOM), peer, 7),
    "Recv of no buffer": lambda comm, y, peer: comm.Recv(object(), peer, 7),
    "Recv with gaps": lambda comm, y, peer: comm.Recv(put(np.zeros(200))[::2], peer, 7),
    "Irecv with gaps": lambda comm, y, peer: comm.Irecv(put(np.zeros(200))[::2], peer, 7),
    "Sendrecv to no rank": lambda comm, y, peer: comm.Sendrecv(put(np.zeros(1)), 99, 0, y, peer, 7),
    "Sendrecv of no buffer": lambda comm, y, peer: comm.Sendrecv(object(), peer, 9, y, peer, 7),
    "Isendrecv of no buffer": lambda comm, y, peer: comm.Isendrecv(object(), peer, 9, y, peer, 7),
    "Sendrecv_replace to no rank": lambda comm, y, peer: comm.Sendrecv_replace(y, 99, 0, peer, 7),
    "Isendrecv_replace to no rank": lambda comm, y, peer: comm.Isendrecv_replace(y, 99, 0, peer, 7),
    "Isendrecv_replace, host": lambda comm, y, peer: comm.Isendrecv_replace(bytearray(2000), 99, 0, peer, 7),
    "sendrecv to no rank": lambda comm, y, peer: comm.sendrecv("x", 99, 0, None, peer, 7),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("probe", [True, False])
def test_a_refused_receive_takes_no_message(comm, name, probe):
    map_peers(comm)
    right, left = ring(comm)
    y = put(np.zeros(63, "i8"))
    sending = comm.Isend(put(data_of(comm.rank, 7, 0, 63)), right, 7) if probe else None
    if probe:
        comm.Probe(left, 7)
    with pytest.raises((MPI.Exception, TypeError, ValueError, BufferError)):
        REFUSED[name](comm, y, left)
    sending = sending or comm.Isend(put(data_of(comm.rank, 7, 0, 63)), right, 7)
    comm.Recv(y, left, 7)
    sending.Wait()
    comm.synchronize()
    np.testing.assert_array_equal(np.asarray(y.tolist()), data_of(left, 7, 0, 63))


@pytest.mark.parametrize("of_host", [True, False])
def test_exchanges_in_place_after_a_probe(comm, of_host):
    """Each rank sends what it has before the probed message comes into the same array."""
    map_peers(comm)
    right, left = ring(comm)
    for begin in (comm.Sendrecv_replace, comm.Isendrecv_replace):
        first_one = comm.Isend(put(data_of(comm.rank, 7, 0, LARGE)), right, 7)
        comm.Probe(left, 7)
        own = data_of(comm.rank, 8, 1, LARGE)
        y = bytearray(own.tobytes() + bytes(ROOM)) if of_host else put(own)
        second = bytearray(8 * LARGE + ROOM) if of_host else put(np.zeros(LARGE + ROOM, "i8"))
        receiving = MPI.Comm.Irecv if of_host else type(comm).Irecv
        request = receiving(comm, second, left, 8)
        done = begin([y, 8 * LARGE + ROOM, MPI.BYTE] if of_host else y, right, 8, left, 7)
        if done is not None:
            done.Wait()
        Request.Waitall([request, first_one])
        comm.synchronize()
        for found, tag, index in ((y, 7, 0), (second, 8, 1)):
            values = np.frombuffer(found, "i8", LARGE) if of_host else np.asarray(found[:LARGE].tolist())
            np.testing.assert_array_equal(values, data_of(left, tag, index, LARGE))


def probe_and_receive(comm, right, left, thread):
    """Return the first step whose data is wrong."""
    for step in range(500):
        count = 16 + 16 * thread
        sending = comm.Isend(put(data_of(comm.rank, thread, step, count)), right, thread)
        message, y = comm.Mprobe(left, thread), put(np.zeros(count, "i8"))
        message.Recv(y)
        sending.Wait()
        comm.synchronize()
        if y.tolist() != data_of(left, thread, step, count).tolist():
            return step
    return None


@pytest.mark.skipif(MPI.Query_thread() < MPI.THREAD_MULTIPLE, reason="only one thread may call MPI")
def test_threads_that_probe_on_communicators_of_their_own(comm):
    owns, device = [comm.Dup() for _ in range(2)], own_gpu()

    def work(thread):
        with device:
            return probe_and_receive(owns[thread], *ring(owns[thread]), thread)

    with ThreadPoolExecutor(2) as threads:
        wrong = list(threads.map(work, range(2)))
    for own in owns:
        own.Free()
    assert wrong == [None, None]


class Interrupted(BaseException):
    """What a handler of the program raises."""


def test_an_interrupted_receive_takes_no_later_message(comm):
    map_peers(comm)
    right, left = ring(comm)
    y, z, other = put(np.zeros(3, "i8")), put(np.zeros(3, "i8")), put(np.zeros(3, "i8"))
    beside = comm.Irecv(other, left, 9)  # a receive that is open makes the host look for messages itself
    with pytest.raises(Interrupted), raising(Interrupted, 0.2):
        comm.Recv(y, left, 7)
    MPI.Comm.Barrier(comm)
    sending = [comm.Isend(put(data_of(comm.rank, tag, 0, 3)), right, tag) for tag in (7, 9)]
    comm.Recv(z, left, 7)
    Request.Waitall([beside, *sending])
    comm.synchronize()
    assert z.tolist() == data_of(left, 7, 0, 3).tolist()
    assert not any(y.tolist())


@pytest.mark.parametrize("name", WAYS)
def test_persistent_receives(comm, name):
    map_peers(comm)
    right, left = ring(comm)
    memory, status = bytearray(8 * LARGE + ROOM), MPI.Status()
    request = comm.Recv_init([memory, MPI.BYTE], left, 3)
    for step, count in enumerate((63, LARGE, 0)):
        request.Start()
        sending = comm.Isend(put(data_of(comm.rank, 3, step, count)), right, 3)
        WAYS[name](request, status)
        sending.Wait()
        np.testing.assert_array_equal(np.frombuffer(memory, "i8", count), data_of(left, 3, step, count))
        assert (status.source, status.tag, status.Get_count(MPI.BYTE)) == (left, 3, 8 * count)
    request.Free()


def test_a_persistent_receive_that_has_come_is_active(comm):
    """A look at its status completes nothing: it cannot be started, and a cancellation comes too late."""
    right, left = ring(comm)
    memory, status = bytearray(ROOM), MPI.Status()
    request = comm.Recv_init([memory, MPI.BYTE], left, 3)
    request.Start()
    sending = comm.Isend(put(data_of(comm.rank, 3, 0, 63)), right, 3)
    for _ in range(2):
        until(lambda: request.Get_status(status))
        assert (status.source, status.tag, status.Get_count(MPI.BYTE)) == (left, 3, 504)
    for start in (request.Start, partial(pyncclx.Prequest.Startall, [request])):
        with pytest.raises(MPI.Exception) as raised:
            start()
        assert raised.value.Get_error_class() == MPI.ERR_REQUEST
    request.Cancel()
    assert Request.Waitany([request], status) == 0
    assert not status.Is_cancelled()
    assert Request.Waitany([request]) == MPI.UNDEFINED
    sending.Wait()
    np.testing.assert_array_equal(np.frombuffer(memory, "i8", 63), data_of(left, 3, 0, 63))
    request.Free()


FOR_ALL = {
    "Waitall": Request.Waitall,
    "waitall": Request.waitall,
    "Testall": lambda *arguments: until(lambda: Request.Testall(*arguments)),
    "testall": lambda *arguments: until(lambda: first(Request.testall(*arguments))),
}


@pytest.mark.parametrize("name", FOR_ALL)
def test_persistent_requests_of_mpi4py_beside_ours(comm, name):
    right, left = ring(comm)
    y, plain = put(np.zeros(63, "i8")), comm.Dup()
    requests = [MPI.Comm.Recv_init(plain, [bytearray(9), MPI.BYTE], left, 4), None]
    for step in range(2):
        statuses = []
        requests[0].Start()
        requests[1] = comm.Irecv(y, left, 3)
        sending = comm.Isend(put(data_of(comm.rank, 3, step, 63)), right, 3)
        MPI.Comm.Send(plain, [bytes(7), MPI.BYTE], right, 4)
        FOR_ALL[name](requests, statuses)
        found = [(each.source, each.tag, each.Get_count(MPI.BYTE)) for each in statuses]
        assert found == [(left, 4, 7), (left, 3, 504)]
        sending.Wait()
        comm.synchronize()
        np.testing.assert_array_equal(np.asarray(y.tolist()), data_of(left, 3, step, 63))
    requests[0].Free()
    plain.Free()


@pytest.mark.parametrize("count", [63, LARGE])
def test_mpi4py_waits_for_persistent_messages_of_device_arrays(comm, count):
    map_peers(comm)
    right, left = ring(comm)
    x, y = put(np.zeros(count, "i8")), put(np.zeros(count, "i8"))
    requests, statuses = [comm.Recv_init(y, left, 3), comm.Send_init(x, right, 3)], [MPI.Status(), MPI.Status()]
    for step, wait in enumerate((MPI.Request.Waitall, Request.Waitall, MPI.Request.Waitall)):
        x[:] = put(data_of(comm.rank, 3, step, count))
        pyncclx.Prequest.Startall(requests)
        time.sleep(0.05 * comm.rank)
        wait(requests, statuses)
        assert not any(request.is_active for request in requests)
        comm.synchronize()
        np.testing.assert_array_equal(np.asarray(y.tolist()), data_of(left, 3, step, count))
        assert (statuses[0].source, statuses[0].Get_count(MPI.INT64_T)) == (left, count)
    assert all(requests)
    for request in requests:
        request.Free()
    assert not any(requests)


def test_status_where_nothing_is_active(comm):
    """Calls that complete one of several requests set an empty status if none is active."""
    requests = [comm.Recv_init(buf, 0, 5) for buf in (put(np.zeros(4)), [bytearray(8), MPI.BYTE])]
    for among in ([], [*requests, MPI.REQUEST_NULL]):
        for call in (Request.Waitany, Request.Testany, Request.waitany, Request.testany):
            status = MPI.Status()
            status.source, status.tag = 3, 4
            found = call(among, status)
            assert (found if isinstance(found, int) else found[0]) == MPI.UNDEFINED
            assert (status.source, status.tag, status.Get_count(MPI.BYTE)) == (MPI.ANY_SOURCE, MPI.ANY_TAG, 0), call
    for request in requests:
        request.Free()
