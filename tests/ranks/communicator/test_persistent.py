"""Persistent collectives: started again and again with other data, the result of the blocking form each time."""

import contextlib
import time
import weakref
from functools import partial

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx.operators import ops
from pyncclx.staging import requests as staged
from support.arrays import HOST, POISON, Output, get, gpu_only, put, xp
from support.everywhere import assert_everywhere, raises_everywhere
from support.forms import COUNT, NAMES, arguments, spec, total
from support.reference import comparing, contributions, fold, labels

STARTS = 3


# What else may come: an operator by its place, and info, which kernels have no use for.
INFO = {"Allreduce": ((MPI.MAX, MPI.INFO_NULL), {}), "Scan": ((), {"info": MPI.INFO_NULL})}


@pytest.mark.parametrize("name", NAMES)
def test_as_mpi4py(comm, name):
    sent, received, more, named = arguments(comm, name)
    more, named = INFO.get(name, (more, named))
    send, recv = put(labels(comm.rank, total(sent))), Output(total(received), "i8")
    request = getattr(comm, f"{name}_init")(spec(send, sent), spec(recv.array, received), *more, **named)
    assert isinstance(request, pyncclx.Prequest)
    plain = {key: value for key, value in named.items() if key != "info"}
    with comparing() as compare:
        for call in range(STARTS):
            recv.poison()
            values, expected = labels(comm.rank, total(sent), call), recv.read()
            getattr(MPI.Intracomm, name)(comm, spec(values, sent), spec(expected, received), *more[:1], **plain)
            send[...] = xp.array(values)
            request.Start()
            request.Wait()
            compare(recv, expected, f"start {call}")
    request.Free()
    assert not request


def test_bcast_in_place(comm):
    buf = Output(COUNT, "i8")
    request = comm.Bcast_init(buf.array, root=comm.size - 1)
    with comparing() as compare:
        for call in range(STARTS):
            buf.fill(labels(comm.rank, COUNT, call))
            request.Start()
            while not request.Test():
                pass
            compare(buf, labels(comm.size - 1, COUNT, call), f"start {call}")
    request.Free()


def test_barrier(comm):
    """Each rank counts its starts in memory that all see. One rank starts later than the others, each in its turn."""
    window = MPI.Win.Allocate_shared(8, 8, comm=comm)
    arrived = [np.frombuffer(window.Shared_query(rank)[0], "i8") for rank in range(comm.size)]
    arrived[comm.rank][0] = 0
    MPI.Intracomm.Barrier(comm)
    request, early = comm.Barrier_init(device=True), []
    for call in range(1, STARTS * comm.size + 1):
        if comm.rank == call % comm.size:
            time.sleep(0.02)
        arrived[comm.rank][0] = call
        request.Start()
        request.Wait()
        comm.synchronize()
        early += [(call, rank) for rank in range(comm.size) if arrived[rank][0] < call]
    request.Free()
    assert_everywhere(comm, not early, f"(call, rank) not waited for: {early[:5]}")
    window.Free()


def test_a_start_at_a_time(comm):
    """Also of one with nothing to do."""
    for count in (0, COUNT):
        request = comm.Allreduce_init(put(np.ones(count, "f4")), Output(count, "f4").array)
        assert not request.is_active
        request.Wait()  # an inactive one is over
        request.Start()
        assert request.is_active
        with raises_everywhere(comm, MPI.Exception, match="has been started") as raised:
            request.Start()
        assert raised.value.Get_error_class() == MPI.ERR_REQUEST
        request.Wait()
        assert not request.is_active
        assert request
        request.Free()
        with raises_everywhere(comm, MPI.Exception, match="has been freed"):
            request.Start()


@pytest.mark.parametrize("prequest", [pyncclx.Prequest, staged.Prequest], ids=["ours", "drop-in"])
@pytest.mark.parametrize("requests", [pyncclx.Request, staged.Request], ids=["ours", "drop-in"])
def test_lists(comm, prequest, requests):
    """Ours and mpi4py's, started together and waited for together."""
    vectors, recv = contributions(comm.size, COUNT), Output(COUNT, "f4")
    ours = comm.Allreduce_init(put(vectors[comm.rank]), recv.array)
    mine, arrived = np.array([comm.rank]), np.array([-1])
    theirs = [MPI.Comm.Send_init(comm, mine, comm.rank), MPI.Comm.Recv_init(comm, arrived, comm.rank)]
    both = [theirs[0], ours, theirs[1]]
    with comparing() as compare:
        for call in range(STARTS):
            recv.poison()
            arrived[0] = -1
            prequest.Startall(both)
            assert ours.is_active
            requests.Waitall(both)
            assert not ours.is_active
            assert arrived[0] == comm.rank
            compare(recv, fold(ops.SUM, vectors), f"start {call}")
    for request in both:
        request.Free()


def test_not_started_by_mpi4py(comm):
    """Its own Startall has nothing but a handle: it raises, and starts nothing."""
    vectors, recv = contributions(comm.size, COUNT), Output(COUNT, "f4")
    request = comm.Allreduce_init(put(vectors[comm.rank]), recv.array)
    assert request != MPI.REQUEST_NULL
    with comparing() as compare:
        for waitall in (pyncclx.Request.Waitall, MPI.Request.Waitall):
            with raises_everywhere(comm, MPI.Exception):
                MPI.Prequest.Startall([request])
            assert not request.is_active
            recv.poison()
            pyncclx.Prequest.Startall([request])
            waitall([request])
            compare(recv, fold(ops.SUM, vectors), waitall.__qualname__)
    request.Free()
    assert request == MPI.REQUEST_NULL


@pytest.mark.one_node
@pytest.mark.parametrize("captured", [False, pytest.param(True, marks=gpu_only)])
def test_several_by_one_launch(comm, captured):
    """Each works on what the one before it gives; with some of another communicator, and some that have nothing to do.

    The ranks start the other communicator's at other places among them.
    """
    other, comm = comm.Dup(), comm.Dup()
    comm.ordered_starts = True
    send, between, recv, last, told = put(np.zeros(COUNT, "f4")), *(Output(COUNT, "f4") for _ in range(4))
    nothing = comm.Allreduce_init(put(np.zeros(0, "f4")), Output(0, "f4").array)
    chain = [
        comm.Allreduce_init(send, between.array),
        comm.Scan_init(between.array, recv.array),
        comm.Allreduce_init(recv.array, last.array, MPI.MAX),
    ]
    beside = other.Bcast_init(told.array, root=comm.size - 1)
    chain.insert(1 + comm.rank % 2, beside)
    orders = [chain, [chain[0], nothing, *chain[1:]], chain]
    stream = None if HOST else xp.cuda.Stream(non_blocking=True)
    with comparing() as compare, contextlib.nullcontext() if HOST else stream:
        for call, requests in enumerate(orders):
            vectors = [labels(rank, COUNT, call).astype("f4") for rank in range(comm.size)]
            send[...] = xp.array(vectors[comm.rank])
            told.fill(vectors[comm.rank])
            if captured:
                stream.begin_capture()
            pyncclx.Prequest.Startall(requests)
            assert all(request.is_active for request in requests)
            pyncclx.Request.Waitall(requests)
            if captured:
                graph = stream.end_capture()
                last.poison()
                graph.launch()
            compare(last, fold(ops.SUM, [fold(ops.SUM, vectors)] * comm.size), f"start {call}")
            compare(told, vectors[-1], f"start {call} beside them")
    last.poison()
    with raises_everywhere(comm, MPI.Exception, match="is there twice"):
        pyncclx.Prequest.Startall([chain[0], chain[3], chain[0]])
    chain[3].Start()
    with raises_everywhere(comm, MPI.Exception, match="has been started"):
        pyncclx.Prequest.Startall(chain)
    assert not any(request.is_active for request in chain[:3])
    chain[3].Wait()
    for request in (*chain, nothing):
        request.Free()
    other.Free()
    comm.Free()


def test_inactive_ones_are_passed_over(comm):
    sends = [put(np.ones(COUNT, "f4")) for _ in range(2)]
    first, second = (comm.Allreduce_init(send, Output(COUNT, "f4").array) for send in sends)
    assert pyncclx.Request.Testany([first, second]) == (MPI.UNDEFINED, True)
    assert pyncclx.Request.Waitsome([first, second]) is None
    second.Start()
    assert pyncclx.Request.Waitany([first, second]) == 1
    assert not second.is_active
    first.Start()
    assert pyncclx.Request.Waitsome([first, second]) == [0]
    first.Free()
    second.Free()
    assert pyncclx.Request.Waitany([first, second]) == MPI.UNDEFINED
    assert pyncclx.Request.Testsome([first, second]) is None
    assert pyncclx.Request.Testall([first, second])
    assert first.Get_status(MPI.Status())


def test_arrays_live_as_long_as_the_request(comm):
    vectors, recv = contributions(comm.size, COUNT), Output(COUNT, "f4")
    send = put(vectors[comm.rank])
    gone = weakref.ref(send)
    request = comm.Allreduce_init(send, recv.array)
    del send
    assert gone() is not None
    request.Start()
    request.Wait()
    request.Free()
    assert gone() is None
    with comparing() as compare:
        compare(recv, fold(ops.SUM, vectors), "recv")


def test_array_with_other_memory(comm):
    """The kernel would write where nothing of the program's is any more."""
    if HOST:
        send = np.ones(COUNT, "f4")
        move = partial(send.resize, 1 << 24, refcheck=False)  # 64 MB never are where little was: malloc maps them
    else:
        torch = pytest.importorskip("torch")
        send = torch.ones(COUNT, device="cuda")
        move = partial(send.set_, torch.ones(1 << 22, device="cuda"))
    recv = Output(COUNT, "f4")
    request = comm.Allreduce_init([send, COUNT], recv.array)
    request.Start()
    request.Wait()
    move()
    recv.poison()
    with raises_everywhere(comm, MPI.Exception, match="an array has other memory") as raised:
        request.Start()
    assert raised.value.Get_error_class() == MPI.ERR_BUFFER
    assert not request.is_active
    assert (get(recv.array.view(np.uint8)) == POISON).all()
    request.Free()


def test_freed_communicator(comm):
    other = comm.Dup()
    request = other.Allreduce_init(put(np.ones(COUNT, "f4")), Output(COUNT, "f4").array)
    request.Start()
    other.Free()
    request.Wait()
    with raises_everywhere(comm, MPI.Exception, match="communicator has been freed"):
        request.Start()
    request.Free()


def test_explain(comm):
    assert comm.explain("Allreduce_init", 64) == comm.explain("Allreduce", 64)


@gpu_only
def test_streams_and_graphs(comm):
    """Started on one stream and waited for on another, then captured and replayed."""
    first, second = (xp.cuda.Stream(non_blocking=True) for _ in range(2))
    send, recv, after = xp.zeros(COUNT, "f4"), xp.empty(COUNT, "f4"), Output(COUNT, "f4")
    xp.cuda.Device().synchronize()  # the two streams do not wait for the one that fills them
    request = comm.Allreduce_init(send, recv)
    with comparing() as compare:
        for call in range(STARTS):
            vectors = contributions(comm.size, COUNT, call=call)
            with first:
                send.set(vectors[comm.rank], stream=first)
                request.Start()
            with second:
                request.Wait()
                xp.copyto(after.array, recv)
            compare(after, fold(ops.SUM, vectors), f"start {call}")
        with first:
            first.begin_capture()
            request.Start()
            request.Wait()
            xp.copyto(after.array, recv)
            graph = first.end_capture()
        for replay in range(STARTS):
            vectors = contributions(comm.size, COUNT, call=10 + replay)
            send.set(vectors[comm.rank])
            xp.cuda.Device().synchronize()
            graph.launch(first)
            first.synchronize()
            compare(after, fold(ops.SUM, vectors), f"replay {replay}")
    comm.synchronize()
    request.Free()
