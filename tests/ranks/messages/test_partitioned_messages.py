"""Partitioned messages: the sender's partitions come when each is ready, from the host and from kernels."""

import functools
import os
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
import pyncclx.device as d
from pyncclx import PartitionedRequest, Prequest, Request
from pyncclx.messages import context
from pyncclx.system import settings
from support.arrays import Output, get, gpu_only, host_only, put, synchronize, xp
from support.device_api import one_communicator
from support.everywhere import assert_everywhere, raises_everywhere
from support.labelled_messages import data_of
from support.reference import NODES, comparing
from support.reversed_ranks import ring

pytestmark = pytest.mark.skipif(bool(NODES), reason="kernels send partitions inside a node")

ROUNDS, TAG = 3, 7
DIVISIONS = [(1, 1), (4, 4), (6, 4), (3, 12), (12, 1)]  # partitions of the sender, of the receiver


def whole_round(requests, partitions):
    """Send all, so many of this rank's, and receive; the ends meet at the first round."""
    Prequest.Startall(requests)
    requests[0].Pready_range(0, partitions - 1)
    Request.Waitall(requests)


class Buffers:
    """What a rank sends and receives: in windows, or in memory that only this process has mapped."""

    def __init__(self, comm, count, window):
        self.send = comm.Alloc(count, "i8") if window else put(np.zeros(count, "i8"))
        self.recv = Output(count, "i8", memory=comm.Alloc(8 * (count + 64), "u1") if window else None)
        self.comm, self.count = comm, count

    def requests(self, sends, receives, tag=TAG):
        right, left = ring(self.comm)
        return self.comm.Psend_init(self.send, sends, right, tag), self.comm.Precv_init(
            self.recv.array, receives, left, tag
        )

    def fill(self, index, part=slice(None)):
        self.send[part] = put(data_of(self.comm.rank, TAG, index, self.count)[part])

    def expected(self, index):
        return data_of(ring(self.comm)[1], TAG, index, self.count)


@pytest.mark.parametrize("window", [False, True])
@pytest.mark.parametrize("count", [0, 12, 60, 36036])
@pytest.mark.parametrize("division", DIVISIONS, ids=str)
def test_around_a_ring(comm, division, count, window):
    """Partitions are made one after the other, in another order in each round, and sent by one, some and all."""
    buffers = Buffers(comm, count, window)
    send, receive = requests = buffers.requests(*division)
    assert all(isinstance(each, PartitionedRequest) and isinstance(each, MPI.Prequest) for each in requests)
    order, each = np.random.default_rng([comm.rank, *division]), count // division[0]
    with comparing() as compare:
        for index in range(ROUNDS):
            buffers.recv.poison()
            Prequest.Startall(requests)
            assert send.is_active
            assert receive.is_active
            if index < 2:
                for partition in order.permutation(division[0]).tolist():
                    buffers.fill(index, slice(partition * each, (partition + 1) * each))
                    send.Pready_list([partition]) if index else send.Pready(partition)
            else:
                buffers.fill(index)
                send.Pready_range(0, division[0] - 1)
            statuses = [MPI.Status(), MPI.Status()]
            assert Request.Waitall(requests, statuses)
            found = statuses[1].source, statuses[1].tag, statuses[1].Get_count(MPI.INT64_T)
            assert found == (ring(comm)[1], TAG, count)
            compare(buffers.recv, buffers.expected(index), f"round {index}")
    for request in requests:
        request.Free()
        assert not request


@pytest.mark.parametrize("window", [False, True])
def test_parrived(comm, window):
    """What has come can be read, and what was not sent has not come."""
    buffers = Buffers(comm, 24, window)
    send, receive = buffers.requests(6, 3)
    synchronize()
    for index in range(ROUNDS):
        buffers.recv.poison()
        receive.Start()
        send.Start()
        buffers.fill(index)
        MPI.Comm.Barrier(comm)
        for half in (0, 1):  # of what makes each partition of the receiver
            send.Pready_list([4 + half, half])
            if half == 0:
                assert_everywhere(comm, not any(map(receive.Parrived, range(3))), f"too early in round {index}")
        deadline = time.monotonic() + settings.TIMEOUT.get()
        while not (receive.Parrived(2) and receive.Parrived(0)):
            assert time.monotonic() < deadline
            os.sched_yield()
        got, expected = buffers.recv.read(), buffers.expected(index)
        right = np.array_equal(got[16:], expected[16:]) and np.array_equal(got[:8], expected[:8])
        early = receive.Parrived(1) or receive.Test() or send.Test()
        assert_everywhere(comm, right and not early, f"round {index}")
        send.Pready_range(2, 3)
        while not (receive.Test() and send.Test()):
            assert time.monotonic() < deadline
            os.sched_yield()
        assert receive.Parrived(1)
        assert_everywhere(comm, np.array_equal(buffers.recv.read(), expected), f"the end of round {index}")


@functools.cache
def kernels():
    return d.kernels(Path(__file__).with_name("partitioned.cu"), "produce", "consume", "misuse")


@pytest.fixture(params=[pytest.param(True, marks=gpu_only), False], ids=["graph", "at once"])
def rounds(request):
    """Returns what runs a round some times: from a graph, or at once."""
    return replays if request.param else at_once


def at_once(one, times):
    for index in range(times):
        one()
        synchronize()
        yield index


def replays(one, times):
    stream = xp.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        try:
            one()
        finally:
            graph = stream.end_capture()
        for index in range(times):
            graph.launch()
            stream.synchronize()
            yield index


@pytest.mark.parametrize("count", [1, 7, 3003])
@pytest.mark.parametrize("who", ["thread", "warp", "block"])
@pytest.mark.parametrize("division", DIVISIONS, ids=str)
def test_kernels_send_and_receive(comm, rounds, division, who, count):
    """Each partition is sent by the threads that have made it, and copied by those that wait for it."""
    buffers = Buffers(comm, 12 * count, window=True)
    right, left = ring(comm)
    send, receive = requests = buffers.requests(*division)
    whole_round(requests, division[0])
    taken, failed = Output(12 * count, "i8"), xp.zeros(1, "i4")
    first = int(data_of(comm.rank, TAG, 1, 1)[0])
    produce, consume = kernels()["produce"], kernels()["consume"]
    number = ["thread", "warp", "block"].index(who)

    def one():
        Prequest.Startall([receive, send])
        each, partitions = np.int64(12 * count // division[0]), np.int32(division[0])
        own = np.uint64(send.pointer), buffers.send, each, partitions, np.int64(first), np.int32(number), failed
        produce(2, 70, own)
        each, partitions = np.int64(12 * count // division[1]), np.int32(division[1])
        consume(
            3,
            40,
            [
                np.uint64(receive.pointer),
                buffers.recv.array,
                taken.array,
                each,
                partitions,
                np.int32(number % 2),
                failed,
            ],
        )
        Request.Waitall(requests)

    with comparing() as compare:
        for index in rounds(one, ROUNDS):
            compare(taken, buffers.expected(1), f"round {index}")
            compare(buffers.recv, buffers.expected(1), f"round {index}, in place")
            assert not get(failed)[0]
            taken.poison()
            buffers.recv.poison()
            synchronize()
            MPI.Comm.Barrier(comm)
    assert right == send._work.peer
    assert left == receive._work.peer


@one_communicator
def test_what_kernels_must_not_ask_for(comm):
    buffers = Buffers(comm, 12, window=True)
    send, receive = requests = buffers.requests(4, 4)
    nobody = comm.Psend_init(buffers.send, 4, MPI.PROC_NULL), comm.Precv_init(buffers.send, 4, MPI.PROC_NULL)
    assert [each.pointer for each in nobody] == [0, 0]
    Prequest.Startall([*requests, *nobody])
    results = xp.full(6, 9, "i4")
    kernels()["misuse"](1, 32, [np.uint64(send.pointer), np.uint64(receive.pointer), np.int32(4), results])
    assert_everywhere(comm, get(results).tolist() == [0] * 6, f"{get(results)}")
    kernels()["misuse"](1, 32, [np.uint64(0), np.uint64(0), np.int32(4), results])
    assert_everywhere(comm, get(results).tolist() == [1] * 6, f"{get(results)}")
    for each in nobody[:1]:
        each.Pready_range(0, 3)
    assert nobody[1].Parrived(3)
    send.Pready_range(0, 3)
    status = MPI.Status()
    Request.Waitall([*requests, *nobody])
    nobody[1].Start()
    nobody[1].Wait(status)
    assert (status.source, status.Get_count(MPI.BYTE)) == (MPI.PROC_NULL, 0)


@pytest.mark.parametrize("epoch", [0x7FFFFFFE, 0xFFFFFFFE], ids=hex)
def test_rounds_wrap_around(comm, epoch):
    """As if there had been so many."""
    buffers = Buffers(comm, 24, window=True)
    send, receive = requests = buffers.requests(4, 6)
    whole_round(requests, 4)
    synchronize()
    MPI.Comm.Barrier(comm)
    write = context.CONTEXT.get().bounce.write
    write(receive._work.epoch, np.full(7, epoch, "u4").tobytes())
    write(send._work.epoch, np.array([epoch, epoch * 6 % (1 << 32)], "u4").tobytes())
    synchronize()
    MPI.Comm.Barrier(comm)
    with comparing() as compare:
        for index in range(5):
            Prequest.Startall(requests)
            buffers.fill(index)
            send.Pready_list([3, 1, 0, 2])
            deadline = time.monotonic() + settings.TIMEOUT.get()
            while not Request.Testall(requests):
                assert time.monotonic() < deadline
                os.sched_yield()
            compare(buffers.recv, buffers.expected(index), f"round {index}")
            MPI.Comm.Barrier(comm)


def test_what_is_ready_before_the_receiver_is_there(comm):
    """As MPI has it: Pready waits for nothing, and what was sent goes on while its rank is elsewhere."""
    buffers = Buffers(comm, 4000, window=False)
    right, left = ring(comm)
    send = comm.Psend_init(buffers.send, 4, right, TAG)
    buffers.fill(3)
    send.Start()
    send.Pready_list([2, 0])
    MPI.Comm.Barrier(comm)
    send.Pready_range(3, 3)
    receive = comm.Precv_init(buffers.recv.array, 2, left, TAG)
    send.Pready(1)
    receive.Start()
    receive.Wait()
    MPI.Comm.Barrier(comm)  # the sender waits for nothing of its own until here
    send.Wait()
    with comparing() as compare:
        compare(buffers.recv, buffers.expected(3), "what came")


@one_communicator
def test_requests_meet_in_the_order_in_which_they_were_made(comm):
    """Of one tag, and started in other orders; those of others, and ordinary messages between, do not matter."""
    right, left = ring(comm)
    sends = [comm.Psend_init(put(data_of(comm.rank, TAG, i, 8)), 2, right, TAG + i // 3) for i in range(6)]
    outputs = [Output(8, "i8") for _ in range(6)]
    receives = [comm.Precv_init(outputs[i].array, 4, left, TAG + i // 3) for i in range(6)]
    extra = Output(5, "i8")
    order = np.random.default_rng(comm.rank)
    for index in range(ROUNDS):
        for i in order.permutation(6).tolist():
            receives[i].Start()
        for i in order.permutation(6).tolist():
            sends[i].Start()
            sends[i].Pready_list([1, 0])
        comm.Sendrecv(put(data_of(comm.rank, TAG, 9, 5)), right, TAG, extra.array, left, TAG)
        Request.Waitall(receives + sends)
        with comparing() as compare:
            compare(extra, data_of(left, TAG, 9, 5), f"ordinary, round {index}")
            for i, output in enumerate(outputs):
                compare(output, data_of(left, TAG, i, 8), f"request {i}, round {index}")
                output.poison()


def test_the_later_request_starts_first_at_the_receiver(comm):
    """The sender finds its offer before that of its first request."""
    right, left = ring(comm)
    sends = [comm.Psend_init(put(data_of(comm.rank, TAG, i, 4)), 2, right, TAG + i) for i in range(2)]
    outputs = [Output(4, "i8") for _ in sends]
    receives = [comm.Precv_init(output.array, 2, left, TAG + i) for i, output in enumerate(outputs)]
    receives[1].Start()
    MPI.Comm.Barrier(comm)
    for send in sends:
        send.Start()
        send.Pready_range(0, 1)
        for _ in range(100):  # so that an offer is read that has come
            assert not send.Test() or send is sends[1]
    MPI.Comm.Barrier(comm)
    receives[0].Start()
    Request.Waitall(receives + sends)
    with comparing() as compare:
        for i, output in enumerate(outputs):
            compare(output, data_of(left, TAG, i, 4), f"request {i}")


def test_an_offer_comes_for_a_request_that_the_sender_makes_later(comm):
    """The sender finds it while it looks for another one, which comes later."""
    source, dest = 0, comm.size - 1
    if source == dest:
        return
    outputs = [Output(4, "i8") for _ in range(2)]
    if comm.rank == dest:  # alone: what later tests make meets in the order in which it is made
        receives = [comm.Precv_init(output.array, 2, source, TAG + i) for i, output in enumerate(outputs)]
        receives[0].Start()
    MPI.Comm.Barrier(comm)
    for i in (1, 0):
        if comm.rank == source:
            send = comm.Psend_init(put(data_of(source, TAG, i, 4)), 2, dest, TAG + i)
            send.Start()
            send.Pready_range(0, 1)
            send.Wait()
        if comm.rank == dest:
            if i == 1:
                receives[i].Start()
            receives[i].Wait()
            with comparing() as compare:
                compare(outputs[i], data_of(source, TAG, i, 4), f"request {i}")


def test_both_ways_with_one_tag(comm):
    """Each rank with each other one, itself too, with a send and a receive."""
    with comparing() as compare:
        outputs = [Output(6, "i8") for _ in range(comm.size)]
        sends = [comm.Psend_init(put(data_of(comm.rank, TAG, i, 6)), 3, i, 1) for i in range(comm.size)]
        receives = [comm.Precv_init(outputs[i].array, 2, i, 1) for i in range(comm.size)]
        for index in range(ROUNDS):
            Prequest.Startall(sends + receives)
            for send in sends:
                send.Pready_range(0, 2)
            Request.Waitall(sends + receives)
            for i, output in enumerate(outputs):
                compare(output, data_of(i, TAG, comm.rank, 6), f"from rank {i}, round {index}")
                output.poison()


@pytest.mark.ranks(2)
def test_intercommunicators(comm):
    if comm.size == 1:
        return
    low = comm.rank < comm.size // 2
    group = comm.Split(int(low))
    inter = group.Create_intercomm(0, comm, comm.size // 2 if low else 0, 1)
    if inter.remote_size == inter.size:
        output = Output(6, "i8")
        requests = [
            inter.Psend_init(put(data_of(comm.rank, TAG, 0, 6)), 3, inter.rank, 1),
            inter.Precv_init(output.array, 2, inter.rank, 1),
        ]
        whole_round(requests, 3)
        other = comm.rank + comm.size // 2 if low else comm.rank - comm.size // 2
        assert np.array_equal(output.read(), data_of(other, TAG, 0, 6))
    MPI.Comm.Barrier(comm)
    inter.Free()
    group.Free()


def error_class(call):
    with pytest.raises(MPI.Exception) as raised:
        call()
    return raised.value.Get_error_class()


@one_communicator
def test_what_is_refused(comm):
    array = put(np.zeros(12, "i8"))
    right, left = ring(comm)
    assert error_class(lambda: comm.Psend_init(array, 0, right)) == MPI.ERR_ARG
    assert error_class(lambda: comm.Psend_init(array, 4, comm.size)) == MPI.ERR_RANK
    assert error_class(lambda: comm.Precv_init(array, 4, left, -3)) == MPI.ERR_TAG
    assert error_class(lambda: comm.Precv_init(array, 4)) == MPI.ERR_RANK
    assert error_class(lambda: comm.Precv_init(array, 4, left)) == MPI.ERR_TAG
    with pytest.raises(ValueError, match="12 elements, not a multiple of 5"):
        comm.Psend_init(array, 5, right)
    with pytest.raises(TypeError):
        comm.Psend_init("text", 1, right)
    send, receive = comm.Psend_init([array, 3, MPI.INT64_T], 4, right), comm.Precv_init(put(np.zeros(12)), 3, left, 0)
    assert error_class(lambda: send.Pready(0)) == MPI.ERR_REQUEST
    assert receive.Parrived(0)
    Prequest.Startall([receive, send])
    assert error_class(send.Start) == MPI.ERR_REQUEST
    assert error_class(lambda: send.Pready(4)) == MPI.ERR_ARG
    assert error_class(lambda: send.Pready_list([1, -1])) == MPI.ERR_ARG
    assert error_class(lambda: receive.Pready(0)) == MPI.ERR_REQUEST
    assert error_class(lambda: send.Parrived(0)) == MPI.ERR_REQUEST
    assert error_class(lambda: receive.Parrived(3)) == MPI.ERR_ARG
    send.Pready(2)
    assert error_class(lambda: send.Pready_range(0, 3)) == MPI.ERR_ARG
    assert error_class(lambda: send.Pready_list([0, 0])) == MPI.ERR_ARG
    assert error_class(send.Free) == MPI.ERR_REQUEST
    send.Pready_list([3, 0, 1])
    Request.Waitall([receive, send])


@one_communicator
def test_ends_that_do_not_fit(comm):
    """Both ranks learn of it, and the communicator goes on."""
    right, left = ring(comm)
    send, receive = comm.Psend_init(xp.zeros(12), 3, right), comm.Precv_init(xp.zeros(10), 2, left, 0)
    Prequest.Startall([receive, send])
    with suppress(MPI.Exception):  # raises, too, if the other rank has answered by now
        send.Pready_range(0, 2)
    for request in (receive, send):
        with raises_everywhere(comm, MPI.Exception, match="sends 96 bytes with tag 0, rank . receives 80") as raised:
            request.Wait()
        assert raised.value.Get_error_class() == MPI.ERR_TRUNCATE
    buffers = Buffers(comm, 12, window=False)
    requests = buffers.requests(3, 3)
    buffers.fill(0)
    whole_round(requests, 3)
    assert_everywhere(comm, np.array_equal(buffers.recv.read(), buffers.expected(0)), "afterwards")


def test_memory_that_kernels_would_not_find(comm):
    """Only where partitions land beside the array."""
    if not pyncclx.backends.select().exports_are_copies:
        pytest.skip("the GPU's memory can be opened")
    buffers = Buffers(comm, 12, window=False)
    send, receive = requests = buffers.requests(3, 3)
    Prequest.Startall(requests)
    assert send.pointer
    with raises_everywhere(comm, pyncclx.NotSupported, match="Alloc"):
        _ = receive.pointer
    send.Pready_range(0, 2)
    Request.Waitall(requests)


@host_only
@one_communicator
def test_captures(comm, monkeypatch):
    """Without a GPU the host device is made to believe that it captures, and so runs what a graph would hold."""
    device = pyncclx.backends.select()
    buffers = Buffers(comm, 24, window=True)
    send, receive = requests = buffers.requests(4, 6)
    with monkeypatch.context() as patch:
        patch.setattr(device, "is_capturing", lambda stream: True)
        with raises_everywhere(comm, pyncclx.NotSupported, match="first start"):
            Prequest.Startall(requests)
    whole_round(requests, 4)
    with comparing() as compare:
        for index in range(ROUNDS):
            buffers.recv.poison()
            buffers.fill(index)
            with monkeypatch.context() as patch:
                patch.setattr(device, "is_capturing", lambda stream: True)
                Prequest.Startall(requests)
                with pytest.raises(pyncclx.NotSupported, match="graph"):
                    receive.Parrived(0)
                send.Pready_list([3, 1])
                send.Pready_list([0, 2])
                Request.Waitall(requests)
            compare(buffers.recv, buffers.expected(index), f"round {index}")
            assert receive.Parrived(0)


@host_only
@one_communicator
def test_pointers_in_a_capture(comm, monkeypatch):
    """They may be asked for there first; CuPy refuses then to copy to the device, as the host device is made to do."""
    device = pyncclx.backends.select()
    buffers = Buffers(comm, 24, window=True)
    send, _ = requests = buffers.requests(4, 6)
    whole_round(requests, 4)
    failed, first = xp.zeros(1, "i4"), int(data_of(comm.rank, TAG, 1, 1)[0])

    def refuse(data):
        raise RuntimeError("the current stream is capturing, so H2D transfers are disallowed")

    with comparing() as compare, monkeypatch.context() as patch:
        patch.setattr(device, "is_capturing", lambda stream: True)
        patch.setattr(device, "upload", refuse)
        for index in range(ROUNDS):
            buffers.recv.poison()
            Prequest.Startall(requests)
            own = np.uint64(send.pointer), buffers.send, np.int64(6), np.int32(4), np.int64(first), np.int32(0), failed
            kernels()["produce"](2, 64, own)
            Request.Waitall(requests)
            compare(buffers.recv, buffers.expected(1), f"round {index}")
    assert not get(failed)[0]


@one_communicator
def test_memory_is_used_again(comm):
    """Requests that are made again and again take no more memory, and find none of what was before."""
    buffers, taken = Buffers(comm, 3000, window=False), []
    with comparing() as compare:
        for index in range(6):
            requests = buffers.requests(3, 2)
            buffers.fill(index)
            whole_round(requests, 3)
            compare(buffers.recv, buffers.expected(index), f"request {index}")
            for request in requests:
                request.Free()
            del requests, request
            synchronize()
            taken.append(context.CONTEXT.get().arena.nbytes)
    assert taken[-1] == taken[1]


@one_communicator
@pytest.mark.ranks(2)
def test_an_end_that_does_not_come(comm, monkeypatch):
    """The wait ends by PYNCCLX_TIMEOUT: on the host for the meeting, then for the partitions in a kernel."""
    own = comm.Dup()
    with monkeypatch.context() as patch:
        patch.setenv("PYNCCLX_TIMEOUT", "0.5")
        assert own.endpoint.timeout_s == 0.5
    buffers = Buffers(own, 12, window=False)
    send, receive = buffers.requests(3, 3)
    send.Start()
    send.Pready_list([0, 1])
    with raises_everywhere(own, pyncclx.PeerTimeout, match="Psend_init with tag 7"):
        send.Wait()
    own.Free()
    receives = comm.endpoint.context.receives
    receives.launch_arrived()
    assert_everywhere(comm, receives.idle, "no end waits for the handshake of a freed communicator")
    own = comm.Dup()
    with monkeypatch.context() as patch:
        patch.setenv("PYNCCLX_TIMEOUT", "0.5")
        assert own.endpoint.timeout_s == 0.5
    send, receive = Buffers(own, 12, window=False).requests(3, 3)
    receive.Start()
    MPI.Comm.Barrier(own)
    with raises_everywhere(own, pyncclx.PeerTimeout, match="_init with tag 7"):
        _ = send._work.prepare(), send._work.meet()  # so that the receiver's wait is one for partitions
        receive.Wait()
        own.synchronize()
    own.Free()


@one_communicator
def test_explain(comm):
    for operation in ("Psend_init", "Precv_init"):
        text = comm.explain(operation, 4096)
        assert text.startswith("native")
        assert "partition" in text


def meet(own, right, left, receive, y):
    """Start the sender's end, and check the data of both."""
    x = put(np.arange(8.0) + own.rank)
    send = own.Psend_init(x, 2, right, 0)
    send.Start()
    send.Pready_range(0, 1)
    Request.Waitall([send, receive])
    own.synchronize()
    assert_everywhere(own, y.tolist() == (np.arange(8.0) + left).tolist(), "partitions")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["Sendrecv", "Isendrecv", "Sendrecv_replace", "Isendrecv_replace"])
def test_long_messages_of_any_tag_after_the_peer_has_started(comm, name):
    """Each rank's long message waits for the other's receive."""
    partner, own, nbytes = comm.rank ^ 1, comm.Dup(), 100_000
    sent, found = bytearray([comm.rank]) * nbytes, bytearray(nbytes)
    if partner >= comm.size:
        found = bytearray([partner]) * nbytes
    else:
        receives = [own.Precv_init(xp.zeros(8), 2, partner, 0) for _ in range(2)]
        Prequest.Startall(receives)
        MPI.Comm.sendrecv(comm, None, partner, 5, None, partner, 5)
        if name.endswith("replace"):
            request, found = getattr(own, name)(sent, partner, 1), sent
        else:
            request = getattr(own, name)(sent, partner, 1, found)
        if request is not None:
            request.Wait()
        sends = [own.Psend_init(xp.zeros(8), 2, partner, 0) for _ in range(2)]
        Prequest.Startall(sends)
        for each in sends:
            each.Pready_range(0, 1)
        Request.Waitall(receives + sends)
    own.synchronize()
    assert_everywhere(own, set(found) == {partner})


def test_probes_find_the_program_s_messages_only(comm):
    """A probe of a tag takes no other message along, and a probe of any tag finds none."""
    right, left = ring(comm)
    own, status, y = comm.Dup(), MPI.Status(), xp.zeros(8)
    receive = own.Precv_init(y, 2, left, 0)
    if comm.rank == 0:
        receive.Start()
    MPI.Comm.Barrier(own)
    for _ in range(100):
        assert not own.Iprobe()
        assert not own.iprobe()
        assert own.Improbe() is None
    MPI.Comm.Barrier(own)
    highest = MPI.COMM_WORLD.Get_attr(MPI.TAG_UB)
    sending = own.Isend(put(data_of(comm.rank, 1, 0, 3)), left, highest)
    own.Probe(right, highest, status)
    found = xp.zeros(3, "i8")
    own.Recv(found, right, highest)
    sending.Wait()
    own.synchronize()
    assert_everywhere(own, found.tolist() == data_of(right, 1, 0, 3).tolist())
    if comm.rank:
        receive.Start()
    meet(own, right, left, receive, y)


@gpu_only
def test_kernels_in_numba(comm):
    """Each block makes a row and sends it, and takes one."""
    cuda = pytest.importorskip("numba.cuda", reason="kernels written in Python need Numba")
    from support import device_kernels  # noqa: PLC0415

    kernel = cuda.jit(device_kernels.pass_partitions)
    buffers, shape = Buffers(comm, 4 * 301, window=True), (4, 301)
    send, receive = requests = buffers.requests(4, 4)
    x, y = buffers.send.reshape(shape), buffers.recv.array.reshape(shape)
    taken, failed = xp.zeros(shape, "i8"), xp.zeros(1, "i4")
    for index in range(ROUNDS):
        Prequest.Startall([receive, send])
        first = int(data_of(comm.rank, TAG, index, 1)[0])
        kernel[4, 64](send.pointer, receive.pointer, x, y, taken, first, failed)
        Request.Waitall(requests)
        right = np.array_equal(get(taken).reshape(-1), buffers.expected(index)) and not get(failed)[0]
        assert_everywhere(comm, right, f"round {index}")
