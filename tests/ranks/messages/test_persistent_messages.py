"""Persistent messages: each start sends or receives one message, which MPI matches with any other."""

import gc
import os
import time
from types import SimpleNamespace

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx import Prequest, Request
from pyncclx.messages import context
from pyncclx.staging import requests as drop_in
from support.arrays import Output, get, gpu_only, put, synchronize, xp
from support.everywhere import assert_everywhere, raises_everywhere
from support.labelled_messages import EAGER, LARGE, data_of, label_of, map_peers, map_peers_if
from support.reference import comparing, labels
from support.reversed_ranks import ring

STARTS = 3
TAG = 7


def fill(array, rank, tag, index):
    """Give an array the data of a message."""
    array[...] = put(data_of(rank, tag, index, array.size))


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("count", [0, 9, EAGER, LARGE])
@pytest.mark.parametrize("form", ["Send_init", "Ssend_init", "Rsend_init"])
def test_around_a_ring(comm, form, count, mapped, monkeypatch):
    map_peers_if(comm, mapped, monkeypatch)
    right, left = ring(comm)
    send, recv = put(np.zeros(count, "i8")), Output(count + 1, "i8")
    requests = [comm.Recv_init(recv.array, left, TAG), getattr(comm, form)(send, right, TAG)]
    assert all(isinstance(each, Prequest) and isinstance(each, MPI.Prequest) for each in requests)
    with comparing() as compare:
        for index in range(STARTS):
            recv.poison()
            fill(send, comm.rank, TAG, index)
            expected = recv.read()
            expected[:count] = data_of(left, TAG, index, count)
            Prequest.Startall(requests)
            assert all(request.is_active for request in requests)
            statuses = [MPI.Status(), MPI.Status()]
            assert Request.Waitall(requests, statuses)
            assert not any(request.is_active for request in requests)
            found = statuses[0].source, statuses[0].tag, statuses[0].Get_count(MPI.INT64_T)
            assert found == (left, TAG, count)
            compare(recv, expected, f"start {index}")
    for request in requests:
        request.Free()
        assert not request


@pytest.mark.parametrize("way", ["Wait", "Test", "Testall", "Waitany", "Waitsome", "Testany", "Testsome", "wait"])
def test_ways_to_wait(comm, way):
    """Of one receive and one send, which go on being there; waited for again, they are inactive."""
    map_peers(comm)
    right, left = ring(comm)
    send, recv = put(np.zeros(5, "i8")), Output(5, "i8")
    requests = [comm.Recv_init(recv.array, left, TAG), comm.Send_init(send, right, TAG)]
    with comparing() as compare:
        for index in range(STARTS):
            fill(send, comm.rank, TAG, index)
            requests[0].Start()
            requests[1].Start()
            wait_by(way, requests)
            assert all(requests)
            compare(recv, data_of(left, TAG, index, 5), f"start {index}")
            status = MPI.Status()
            assert requests[0].Test(status)
            assert status.Get_count(MPI.BYTE) == 0
            assert status.source == MPI.ANY_SOURCE
            assert Request.Waitany(requests) == MPI.UNDEFINED


def wait_by(way, requests):
    done = []
    if way in ("Wait", "wait"):
        for request in requests:
            getattr(request, way)()
    elif way == "Test":
        while [request for request in requests if not request.Test()]:
            os.sched_yield()
    elif way == "Testall":
        while not Request.Testall(requests):
            os.sched_yield()
    else:
        while len(done) < 2:
            result = getattr(Request, way)(requests)
            result = {"Waitany": [result], "Testany": [result[0]] if way == "Testany" and result[1] else []}.get(
                way, result
            )
            done += result
        assert sorted(done) == [0, 1]


FORMS = 5  # of a send, and of a receive


def begin_send(comm, form, send, persistent, dest):
    if form < 3:
        persistent[form].Start()
        return persistent[form]
    return (comm.Isend, comm.Issend)[form - 3](send[form], dest, TAG)


def begin_receive(comm, form, recv, persistent, source):
    if form < 3:
        persistent[form].Start()
        return persistent[form]
    sources = (source, MPI.ANY_TAG) if form == 4 else (source, TAG)
    return comm.Irecv(recv[form].array, *sources)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("seed", range(3))
def test_they_meet_any_message(comm, seed):
    """On one tag, in random orders that differ between sender and receiver: all come in the order they were sent.

    Three requests of each rank, one of which is made anew now and then, take turns with Isend, Issend and Irecv, some
    with wildcards.
    """
    right, left = ring(comm)
    shared = np.random.default_rng(seed)  # the lengths: receives have room for all
    mine, theirs = (np.random.default_rng([seed, 1 + rank]) for rank in (comm.rank, left))
    del theirs
    sends = [put(np.zeros(100, "i8")) for _ in range(FORMS)]
    recvs = [Output(100, "i8") for _ in range(FORMS)]
    out = [comm.Send_init(send, right, TAG) for send in sends[:3]]
    in_from = [left, left, MPI.ANY_SOURCE if comm.size == 2 else left]
    into = [comm.Recv_init(recv.array, source, TAG) for recv, source in zip(recvs, in_from, strict=False)]
    index = 0
    for _ in range(12):
        number = int(shared.integers(1, FORMS + 1))
        sending, receiving = mine.permutation(FORMS)[:number].tolist(), mine.permutation(FORMS)[:number].tolist()
        for each, form in enumerate(sending):
            fill(sends[form], comm.rank, TAG, index + each)
        requests, statuses = [], [MPI.Status() for _ in range(2 * number)]
        steps = [("r", form) for form in receiving], [("s", form) for form in sending]
        for which in mine.permutation([0] * number + [1] * number):
            side, form = steps[which].pop(0)
            if side == "r":
                requests.append((form, begin_receive(comm, form, recvs, into, left)))
            else:
                requests.append((None, begin_send(comm, form, sends, out, right)))
        Request.Waitall([request for _, request in requests], statuses)
        got = [label_of(get(recvs[form].array)) for form in receiving]
        assert got == [(left, TAG, index + each) for each in range(number)], (sending, receiving)
        for (form, _), status in zip(requests, statuses, strict=True):
            if form is not None:
                assert (status.source, status.tag, status.Get_count(MPI.INT64_T)) == (left, TAG, 100)
        index += number
        again = int(shared.integers(3))
        for requests, make in (
            (out, lambda i: comm.Send_init(sends[i], right, TAG)),
            (into, lambda i: comm.Recv_init(recvs[i].array, in_from[i], TAG)),
        ):
            requests[again].Free()
            requests[again] = make(again)


def test_wildcards_and_nobody(comm):
    """MPI.ANY_SOURCE and MPI.ANY_TAG find what comes; MPI.PROC_NULL is over at once."""
    map_peers(comm)
    right, left = ring(comm)
    send, recv, untouched = put(np.zeros(3, "i8")), Output(3, "i8"), Output(3, "i8")
    requests = [
        comm.Recv_init(recv.array),
        comm.Send_init(send, right, 5),
        comm.Recv_init(untouched.array, MPI.PROC_NULL),
        comm.Send_init(send, MPI.PROC_NULL, 5),
    ]
    with comparing() as compare:
        for index in range(STARTS):
            fill(send, comm.rank, 5, index)
            statuses = [MPI.Status() for _ in requests]
            Prequest.Startall(requests)
            Request.Waitall(requests, statuses)
            assert (statuses[0].source, statuses[0].tag, statuses[0].Get_count(MPI.INT64_T)) == (left, 5, 3)
            assert (statuses[2].source, statuses[2].Get_count(MPI.INT64_T)) == (MPI.PROC_NULL, 0)
            compare(recv, data_of(left, 5, index, 3), f"start {index}")
            compare(untouched, Output(3, "i8").read(), "from nobody")


def test_a_message_that_is_too_long(comm):
    """It is refused by the call that waits; the request and the communicator live, and the sender's end too."""
    map_peers(comm)
    right, left = ring(comm)
    with comparing() as compare:
        for count in (9, LARGE):
            long, short, recv = put(np.zeros(count, "i8")), put(np.zeros(4, "i8")), Output(4, "i8")
            receive = comm.Recv_init(recv.array, left, TAG)
            sends = [comm.Send_init(each, right, TAG) for each in (long, short)]
            for index, send in enumerate([sends[0], sends[1], sends[0], sends[1]]):
                fill(short, comm.rank, TAG, index)
                Prequest.Startall([receive, send])
                if send is sends[0]:
                    with raises_everywhere(comm, MPI.Exception, match="room for 32") as raised:
                        Request.Waitall([send, receive])
                    assert raised.value.__cause__.Get_error_class() == MPI.ERR_TRUNCATE
                    assert not receive.is_active
                else:
                    Request.Waitall([send, receive])
                    compare(recv, data_of(left, TAG, index, 4), f"start {index}")


def test_what_is_refused(comm):
    array = xp.zeros(4, "i8")
    for call, error_class in (
        (lambda: comm.Send_init(array, comm.size), MPI.ERR_RANK),
        (lambda: comm.Recv_init(array, comm.size), MPI.ERR_RANK),
        (lambda: comm.Ssend_init(array, 0, -3), MPI.ERR_TAG),
        (lambda: comm.Recv_init(array, 0, -3), MPI.ERR_TAG),
    ):
        with pytest.raises(MPI.Exception) as raised:
            call()
        assert raised.value.Get_error_class() == error_class
    own = comm.Dup()
    receive, send = own.Recv_init(array, own.rank, 1), own.Send_init(put(np.arange(4)), own.rank, 1)
    for call in (
        lambda: Prequest.Startall([receive, receive]),
        lambda: (receive.Start(), receive.Start()),
        lambda: Prequest.Startall([send, receive]),
    ):
        with pytest.raises(MPI.Exception) as raised:
            call()
        assert raised.value.Get_error_class() == MPI.ERR_REQUEST
    send.Start()
    Request.Waitall([send, receive])
    assert get(array).tolist() == [0, 1, 2, 3]
    own.Free()
    with pytest.raises(MPI.Exception, match="freed"):
        receive.Start()
    receive.Free()
    with pytest.raises(MPI.Exception, match="freed"):
        receive.Start()


def test_a_start_looks_for_errors_of_each_communicator(comm):
    """Before anything begins: nothing is sent of what the list has of the others."""
    first, second = comm.Dup(), comm.Dup()
    right, left = ring(comm)
    recv = Output(9, "i8")
    mine = [first.Recv_init(recv.array, left, TAG), first.Send_init(put(data_of(comm.rank, TAG, 0, 9)), right, TAG)]
    array = xp.zeros(9, "i8")
    both = [*mine, second.Recv_init(array, left, TAG), second.Send_init(xp.zeros(9, "i8"), right, TAG)]
    second.endpoint.failure = pyncclx.Aborted("stopped by the test")
    with raises_everywhere(comm, pyncclx.Aborted, match="stopped by the test"):
        Prequest.Startall(both)
    second.endpoint.failure = None
    second.Free()
    with raises_everywhere(comm, MPI.Exception, match="communicator has been freed"):
        Prequest.Startall(both)
    assert_everywhere(comm, not any(request.is_active for request in both))
    Prequest.Startall(mine)
    Request.Waitall(mine)
    with comparing() as compare:
        compare(recv, data_of(left, TAG, 0, 9), "what was sent first")
    first.Free()


def test_a_start_does_not_send_to_a_rank_that_has_failed(comm):
    dead = SimpleNamespace(ranks=(comm.rank,), note=None, exception=lambda _: pyncclx.RankFailed((0,), (0,), "killed"))
    array = xp.zeros(9, "i8")
    receive, send = comm.Recv_init(array, comm.rank, TAG), comm.Send_init(put(np.arange(9)), comm.rank, TAG)
    comm.endpoint.comm_failure = dead
    with raises_everywhere(comm, pyncclx.RankFailed, match="killed"):
        Prequest.Startall([receive, send])
    comm.endpoint.comm_failure = None
    assert_everywhere(comm, not (receive.is_active or send.is_active))
    Prequest.Startall([receive, send])
    Request.Waitall([receive, send])
    assert_everywhere(comm, get(array).tolist() == list(range(9)))


@pytest.mark.parametrize("count", [9, LARGE])
def test_free_before_the_end(comm, count):
    """What was started goes on without its request, which another one may follow."""
    map_peers(comm)
    right, left = ring(comm)
    recvs = [Output(count, "i8") for _ in range(2)]
    for index, recv in enumerate(recvs):
        receive = comm.Recv_init(recv.array, left, TAG)
        receive.Start()
        receive.Free()
        send = put(data_of(comm.rank, TAG, index, count))
        sending = comm.Send_init(send, right, TAG)
        sending.Start()
        if index:
            sending.Wait()
        sending.Free()
    got = Output(1, "i8")
    comm.Sendrecv(put(data_of(comm.rank, 8, 0, 1)), right, 8, got.array, left, 8)
    with comparing() as compare:
        for index, recv in enumerate(recvs):
            while label_of(get(recv.array)) != (left, TAG, index):
                comm.Recv_init(recv.array, MPI.PROC_NULL).Start()
                comm.Iprobe(left, 100)
                Request.Test(comm.Irecv(got.array, MPI.PROC_NULL))
            synchronize()
            compare(recv, data_of(left, TAG, index, count), f"message {index}")


def test_many_at_once(comm):
    """More than one launch takes, of several communicators."""
    map_peers(comm)
    right, left = ring(comm)
    comms, number = (comm, comm.Dup()), 45
    sends = [[put(np.zeros(20 + i, "i8")) for i in range(number)] for _ in comms]
    recvs = [[Output(20 + i, "i8") for i in range(number)] for _ in comms]
    requests = [
        request
        for own, out, into in zip(comms, sends, recvs, strict=True)
        for i in range(number)
        for request in (own.Send_init(out[i], right, i), own.Recv_init(into[i].array, left, i))
    ]
    with comparing() as compare:
        for index in range(2):
            for which, out in enumerate(sends):
                for i, send in enumerate(out):
                    fill(send, comm.rank, i, 2 * index + which)
            Prequest.Startall(requests)
            Request.Waitall(requests[::-1])
            for which, into in enumerate(recvs):
                for i, recv in enumerate(into):
                    compare(recv, data_of(left, i, 2 * index + which, 20 + i), f"message {i} of {which}, start {index}")
    comms[1].Free()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("count", [9, LARGE])
def test_with_collectives_in_other_orders(comm, count):
    """A rank that has started to send goes into a sum first; its partner begins the sum before it receives."""
    map_peers(comm)
    partner = comm.rank ^ 1 if comm.rank ^ 1 < comm.size else MPI.PROC_NULL
    send, recv, total = put(np.zeros(count, "i8")), Output(count, "i8"), Output(3, "i8")
    sending, receiving = comm.Send_init(send, partner, TAG), comm.Recv_init(recv.array, partner, TAG)
    with comparing() as compare:
        for index in range(STARTS):
            fill(send, comm.rank, TAG, index)
            first = comm.rank % 2 == index % 2
            if first:
                Prequest.Startall([sending])
            comm.Allreduce(put(np.full(3, comm.rank, "i8")), total.array)
            if not first:
                Prequest.Startall([receiving, sending])
            else:
                receiving.Start()
            comm.Allreduce(put(np.full(3, comm.rank, "i8")), total.array)
            Request.Waitall([sending, receiving])
            compare(total, np.full(3, comm.size * (comm.size - 1) // 2), "sum")
            if partner != MPI.PROC_NULL:
                compare(recv, data_of(partner, TAG, index, count), f"start {index}")


@pytest.mark.parametrize("rows", [3, 9000])
def test_derived_datatypes(comm, rows):
    """The second column becomes the last; what lies between stays."""
    right, left = ring(comm)
    column = MPI.INT64_T.Create_vector(rows, 1, 4).Create_resized(0, 8).Commit()
    x, y = put(np.zeros((rows, 4), "i8")), Output((rows, 4), "i8")
    requests = [comm.Send_init([x, (1, 1), column], right), comm.Recv_init([y.array, (1, 3), column], left)]
    column.Free()
    with comparing() as compare:
        for index in range(STARTS):
            x[...] = put(labels(comm.rank, 4 * rows, index).reshape(rows, 4))
            y.poison()
            expected, status = y.read(), [MPI.Status(), MPI.Status()]
            expected[:, 3] = labels(left, 4 * rows, index).reshape(rows, 4)[:, 1]
            Prequest.Startall(requests)
            Request.Waitall(requests, status)
            compare(y, expected, f"start {index}")
            assert status[1].Get_count(MPI.INT64_T) == rows


def test_what_a_probe_has_found(comm):
    """A receive that starts later gets it."""
    map_peers(comm)
    right, left = ring(comm)
    send, recv, status = put(data_of(comm.rank, TAG, 1, 6)), Output(6, "i8"), MPI.Status()
    sending, receiving = comm.Send_init(send, right, TAG), comm.Recv_init(recv.array, left, TAG)
    sending.Start()
    comm.Probe(left, TAG, status)
    assert status.Get_count(MPI.INT64_T) == 6
    receiving.Start()
    receiving.Wait(status)
    sending.Wait()
    assert (status.source, status.tag, status.Get_count(MPI.INT64_T)) == (left, TAG, 6)
    with comparing() as compare:
        compare(recv, data_of(left, TAG, 1, 6), "probed")


def test_host_arrays(comm):
    """On either side."""
    map_peers(comm)
    right, left = ring(comm)
    sent, room = data_of(comm.rank, TAG, 2, 6), bytearray(6 * 8 + 1000)
    send, recv = put(sent), Output(6, "i8")
    out, into = comm.Send_init(send, right, TAG), comm.Recv_init(recv.array, left, TAG)
    receiving = comm.Irecv(room, left, TAG)
    out.Start()
    receiving.Wait()
    out.Wait()
    assert np.frombuffer(room[:48], "i8").tolist() == data_of(left, TAG, 2, 6).tolist()
    into.Start()
    request = comm.Isend(bytearray(sent.tobytes()), right, TAG)
    into.Wait()
    request.Wait()
    with comparing() as compare:
        compare(recv, data_of(left, TAG, 2, 6), "from the host")


def test_by_its_handle(comm):
    """As PyFR frees its requests."""
    request = comm.Send_init(xp.zeros(3), comm.rank)
    other = comm.Send_init(put(data_of(comm.rank, TAG, 0, 3)), MPI.PROC_NULL)
    assert drop_in.Request.fromhandle(request.handle) is request
    assert drop_in.Request.fromhandle(other.handle) is other
    assert not drop_in.Request.fromhandle(MPI.REQUEST_NULL.handle)
    drop_in.Prequest.fromhandle(request.handle).free()
    assert not request


@pytest.mark.parametrize("kind", [drop_in.Request, drop_in.Prequest])
@pytest.mark.parametrize("way", ["f2py", "fromint"])
def test_by_its_integer_handle(comm, kind, way):
    """It names the request before it has started, while it is active, and after."""
    to_integer = {"f2py": "py2f", "fromint": "toint"}[way]
    x, y = put(data_of(comm.rank, TAG, 0, 6)), Output(6, "i8")
    requests = [comm.Recv_init(y.array, comm.rank, TAG), comm.Send_init(x, comm.rank, TAG)]

    def copies():
        return [getattr(kind, way)(getattr(request, to_integer)()) for request in requests]

    for request in copies():
        request.Start()
    for request in copies():
        request.Wait()
    with comparing() as compare:
        compare(y, data_of(comm.rank, TAG, 0, 6), "received")
    for request in copies():
        request.Free()
    assert not any((*requests, *copies()))


def test_called_on_the_class(comm):
    x, y = put(data_of(comm.rank, TAG, 0, 6)), Output(6, "i8")
    requests = [comm.Recv_init(y.array, comm.rank, TAG), comm.Send_init(x, comm.rank, TAG)]
    for request in requests:
        drop_in.Prequest.Start(request)
    for request in requests:
        drop_in.Request.Wait(request)
    with comparing() as compare:
        compare(y, data_of(comm.rank, TAG, 0, 6), "received")
    drop_in.Request.Free(requests[0])
    drop_in.Prequest.free(requests[1])
    of_mpi = MPI.Comm.Send_init(comm, bytearray(3), MPI.PROC_NULL)
    drop_in.Prequest.Start(of_mpi)
    of_mpi.Wait()
    drop_in.Request.Free(of_mpi)
    assert not any((*requests, of_mpi))


def copy_by_object(request):
    return MPI.Request(request)


def copy_by_handle(request):
    return MPI.Request.fromhandle(request.handle)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("comm", ["reversed"], indirect=True)
@pytest.mark.parametrize("count", [6, 12006])
@pytest.mark.parametrize("is_dropped", [False, True])
@pytest.mark.parametrize("copy", [copy_by_object, copy_by_handle])
def test_a_copy_of_the_handle_waits_for_the_data(comm, copy, is_dropped, count):
    """Of a receive that the program still has, or has dropped; the data comes late."""
    last, recv = comm.size - 1, Output(count, "i8")
    with comparing() as compare:
        for index in range(2):
            recv.poison()
            status = MPI.Status()
            if comm.rank == 0:
                request = comm.Recv_init(recv.array, last, TAG)
                request.Start()
                copied = copy(request)
                if is_dropped:
                    del request
                    gc.collect()
                    context.CONTEXT.get().receives.pending_sends.take_dropped()
                MPI.Comm.Barrier(comm)
                copied.Wait(status)
                compare(recv, data_of(last, TAG, index, count), f"round {index}")
            else:
                MPI.Comm.Barrier(comm)
                if comm.rank == last:
                    time.sleep(0.2)  # so that a wait that is none shows
                    comm.Send(put(data_of(last, TAG, index, count)), 0, TAG)
            assert_everywhere(comm, comm.rank or (status.source, status.tag) == (last, TAG), f"{status.source}")


@pytest.mark.ranks(2)
@pytest.mark.parametrize("wait", ["Wait", "Test", "Waitall", "ours"])
def test_mpi4py_completes_the_request_behind_a_copy_of_its_handle(comm, wait):
    """As the persistent requests of MPI, which are then inactive, the request may be asked again, and started."""
    right, left = ring(comm)
    waits = {
        "Wait": MPI.Request.Wait,
        "Test": MPI.Request.Test,
        "Waitall": lambda request: MPI.Request.Waitall([request]),
        "ours": lambda request: request.Wait(),
    }
    recv = Output(12, "i8")
    request = comm.Recv_init(recv.array, left, TAG)
    with comparing() as compare:
        for index in range(STARTS):
            recv.poison()
            request.Start()
            copied = MPI.Request(request)
            comm.Send(put(data_of(comm.rank, TAG, index, 12)), right, TAG)
            copied.Wait()
            waits[wait](request)
            assert not request.is_active
            compare(recv, data_of(left, TAG, index, 12), f"start {index}")
    request.Free()


def test_explain(comm):
    assert comm.explain("Send_init", 4096).startswith("native")
    assert comm.explain("Recv_init", 1 << 20).startswith("native")
    assert not comm.explain("Bsend_init", 4096).startswith("native")


# In graphs


@pytest.fixture(params=[pytest.param(True, marks=gpu_only), False])
def captured(request, monkeypatch):
    """Returns what starts requests in a capture and runs that some times; where there are no graphs, at once.

    Without a GPU the host device is made to believe that it captures, and so runs what a graph would hold.
    """
    if request.param:
        return run_graph
    device = pyncclx.backends.select()
    if device.name == "gpu":
        pytest.skip("needs the host device")

    def run(requests, times, between):
        for index in range(times):
            between(index)
            with monkeypatch.context() as patch:
                patch.setattr(device, "is_capturing", lambda stream: True)
                Prequest.Startall(requests)
                statuses = [MPI.Status() for _ in requests]
                Request.Waitall(requests, statuses)
            yield index, statuses

    return run


def run_graph(requests, times, between):
    stream = xp.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        try:
            Prequest.Startall(requests)
            statuses = [MPI.Status() for _ in requests]
            Request.Waitall(requests, statuses)
        finally:  # what is refused leaves the capture as it was
            graph = stream.end_capture()
        for index in range(times):
            between(index)
            graph.launch()
            stream.synchronize()
            yield index, statuses


@pytest.mark.one_node
@pytest.mark.parametrize("window", [False, True])
@pytest.mark.parametrize("counts", [(9, 0, 1000), (LARGE, 9)])
def test_graphs(comm, captured, counts, window):
    """Each request meets the one that it met before the capture, every time that the graph runs."""
    if not window and max(counts) > EAGER and pyncclx.backends.select().exports_are_copies:
        pytest.skip("the host device cannot share this memory")
    right, left = ring(comm)
    sends = [comm.Alloc(count, "i8") if window else put(np.zeros(count, "i8")) for count in counts]
    recvs = [Output(count + 2, "i8") for count in counts]
    # Both of one tag, and some more than one launch takes.
    requests = [comm.Recv_init(recv.array, left, TAG) for recv in recvs]
    requests += [comm.Send_init(send, right, TAG) for send in sends]
    more = [comm.Send_init(xp.zeros(1), right, 1) for _ in range(25)]
    more += [comm.Recv_init(xp.zeros(1), left, 1) for _ in range(25)]
    Prequest.Startall(requests + more)
    Request.Waitall(requests + more)

    def refill(index):
        for number, (send, recv) in enumerate(zip(sends, recvs, strict=True)):
            fill(send, comm.rank, number, index)
            recv.poison()
        synchronize()

    with comparing() as compare:
        for index, statuses in captured(requests + more, 5, refill):
            for number, (count, recv) in enumerate(zip(counts, recvs, strict=True)):
                expected = Output(count + 2, "i8").read()
                expected[:count] = data_of(left, number, index, count)
                compare(recv, expected, f"{count} elements, run {index}")
                status = statuses[number]
                assert (status.source, status.tag, status.Get_count(MPI.INT64_T)) == (left, TAG, count)
    # Outside again, with a receive that is made anew and continues in a graph.
    requests[0].Free()
    requests[0] = comm.Recv_init(recvs[0].array, left, TAG)
    refill(7)
    Prequest.Startall(requests)
    Request.Waitall(requests)
    with comparing() as compare:
        compare(recvs[0].array[: counts[0]], data_of(left, 0, 7, counts[0]), "outside")
        for index, _ in captured(requests, 3, refill):
            compare(recvs[0].array[: counts[0]], data_of(left, 0, index, counts[0]), f"a new receive, run {index}")


@pytest.mark.one_node
def test_graphs_of_derived_datatypes(comm, captured):
    right, left = ring(comm)
    column = MPI.INT64_T.Create_vector(30, 1, 4).Create_resized(0, 8).Commit()
    x, y = put(np.zeros((30, 4), "i8")), Output((30, 4), "i8")
    requests = [comm.Send_init([x, (1, 1), column], right), comm.Recv_init([y.array, (1, 3), column], left)]
    Prequest.Startall(requests)
    Request.Waitall(requests)

    def refill(index):
        x[...] = put(labels(comm.rank, 120, index).reshape(30, 4))
        y.poison()
        synchronize()

    with comparing() as compare:
        for index, _ in captured(requests, 3, refill):
            expected = Output((30, 4), "i8").read()
            expected[:, 3] = labels(left, 120, index).reshape(30, 4)[:, 1]
            compare(y, expected, f"run {index}")
    column.Free()


def test_what_a_graph_refuses(comm, captured, monkeypatch):
    """A first start, any source, and one that met a message of another kind; nothing is launched."""
    right, left = ring(comm)
    monkeypatch.setattr(pyncclx.messages.persistent.base, "LONGEST_WAIT_S", 0.1)
    array, room = xp.zeros(4, "i8"), xp.zeros(4, "i8")
    send, receive = comm.Send_init(array, right, TAG), comm.Recv_init(room, left, TAG)
    wild = comm.Recv_init(room, MPI.ANY_SOURCE, TAG)

    def refused(request, match):
        with raises_everywhere(comm, pyncclx.NotSupported, match=match):
            list(captured([request], 1, lambda index: None))
        assert not request.is_active

    refused(send, "start it once before")
    refused(receive, "start both once before")
    ordinary = comm.Irecv(room, left, TAG)
    send.Start()
    Request.Waitall([ordinary, send])
    refused(send, "no persistent request")
    receive.Start()
    comm.Isend(array, right, TAG).Wait()
    receive.Wait()
    refused(receive, "start both once before")
    Prequest.Startall([wild, send])
    Request.Waitall([wild, send])
    refused(wild, "ANY_SOURCE")
