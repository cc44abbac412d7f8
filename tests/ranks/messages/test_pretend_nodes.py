"""Messages between pretend nodes: ranks in which PYNCCLX_NODE differs share no memory, so the data goes through MPI."""

import contextlib
import gc
import time
import tracemalloc

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx import Prequest, Request
from pyncclx.messages import context, departure
from pyncclx.messages.memory import scratch
from pyncclx.messages.persistent import base
from pyncclx.objects import messages as object_messages
from support.arrays import Output, put, xp
from support.everywhere import raises_everywhere
from support.labelled_messages import LARGE
from support.reversed_ranks import ring

pytestmark = pytest.mark.ranks(2)


@pytest.fixture
def comm(monkeypatch):
    """Each rank is a node."""
    monkeypatch.setenv("PYNCCLX_NODE", str(MPI.COMM_WORLD.rank))
    forget_node()
    comm = pyncclx.Communicator().Dup()
    yield comm
    comm.Free()
    forget_node()


def forget_node():
    """A process finds its node out once."""
    context.CONTEXT.reset()
    object_messages._ALONE.reset()


def test_a_message_between_nodes_goes_through_mpi(comm):
    (peer, source), data = ring(comm), np.arange(5000, dtype="f4")
    for call in range(3):  # from the second one on, ranks of one node would copy
        got = Output(data.size, "f4")
        receive = comm.Irecv(got.array, source)
        comm.Send(put(data + comm.rank + call), peer)
        receive.Wait()
        comm.synchronize()
        assert np.array_equal(got.read(), data + source + call)
        assert not comm.endpoint.peers.is_reader(peer)


@pytest.mark.parametrize("by", ["a message", "the topology"])
def test_long_messages_between_nodes_have_pinned_memory(comm, by, monkeypatch):
    """On both sides, once a rank has found out that the other one is on another node."""
    (right, left), count = ring(comm), (1 << 17) + 3
    if by == "the topology":
        assert comm.node_topology.node_count == comm.size
    taken = []

    def taking(device, nbytes, *, is_pinned):
        taken.append(is_pinned)
        return memory(device, nbytes, is_pinned=is_pinned)

    memory = scratch.host_memory
    monkeypatch.setattr(scratch, "host_memory", taking)
    monkeypatch.setattr(departure, "host_memory", taking)
    for turn in range(3):
        got = Output(count, "i8")
        receive = comm.Irecv(got.array, left, turn)
        comm.Send(put(np.arange(count) + comm.rank + turn), right, turn)
        receive.Wait()
        comm.synchronize()
        assert np.array_equal(got.read(), np.arange(count) + left + turn)
        of_receive, *of_send = taken
        assert of_receive == (turn > 0 or by == "the topology")
        if turn > 0 or by == "the topology":  # before, its message may have come in time
            assert of_send == ([True] if comm.size == 2 or by == "the topology" else [])
        taken.clear()


@pytest.mark.parametrize("count", [1, 100, 1 << 15])
def test_messages_between_nodes_are_those_of_host_arrays(comm, count):
    """mpi4py receives them as they are, once an envelope has gone each way; so does a probe see them."""
    other = comm.rank ^ 1
    if other >= comm.size:
        return
    for turn in range(3):
        got, status = Output(count, "i8"), MPI.Status()
        receive = comm.Irecv(got.array, other, turn)
        comm.Send(put(np.arange(count) + 10 * comm.rank + turn), other, turn)
        receive.Wait(status)
        comm.synchronize()
        assert got.read().tolist() == (np.arange(count) + 10 * other + turn).tolist()
        assert status.Get_count(MPI.INT64_T) == count
    sent, received, status = put(np.arange(count) - comm.rank), np.full(count + 1, -7), MPI.Status()
    send = comm.Isend(sent, other, 4)
    MPI.Comm.Probe(comm, other, 4, status)
    assert status.Get_count(MPI.BYTE) == 8 * count
    MPI.Comm.Recv(comm, received, other, 4, status)
    send.Wait()
    assert status.Get_count(MPI.INT64_T) == count
    assert received.tolist() == [*(np.arange(count) - other), -7]


def test_a_message_between_nodes_that_is_too_long(comm):
    """It is refused, and the next one is received."""
    right, left = ring(comm)
    for turn in range(4):
        short, status = Output(3, "i8"), MPI.Status()
        send = comm.Isend(xp.arange(5 if turn % 2 else 3), right)
        if turn % 2:
            with pytest.raises(MPI.Exception, match="sent 40 bytes with tag 0, the buffer has room for 24"):
                comm.Recv(short.array, left, status=status)
        else:
            comm.Recv(short.array, left, status=status)
            comm.synchronize()
            assert short.read().tolist() == [0, 1, 2]
        send.Wait()


def mprobed(comm, obj, right, left):
    request = comm.isend(obj, right)
    comm.mprobe(left).recv()
    request.wait()


def matched(comm, x, right, left):
    request = comm.Isend(x, right)
    comm.Mprobe(left).Recv(xp.empty_like(x))
    request.Wait()


EXCHANGES = {  # of one object or array, which is long
    "sendrecv": lambda comm, x, right, left: comm.sendrecv([x], right, source=left),
    "mprobe": lambda comm, x, right, left: mprobed(comm, [x], right, left),
    "Mprobe": matched,
    "gather": lambda comm, x, right, left: comm.gather([x]),
    "alltoall": lambda comm, x, right, left: comm.alltoall([[x]] * comm.size),
    "reduce": lambda comm, x, right, left: comm.reduce(x),
    "Sendrecv": lambda comm, x, right, left: comm.Sendrecv(x, right, 0, xp.empty_like(x), left),
}


def has_level_memory(act, nbytes):
    """Whether twenty rounds keep less than the given memory, at most some seconds later."""
    for _ in range(4):
        act()
    tracemalloc.start()
    try:
        for _ in range(20):
            act()
        end = time.monotonic() + 5
        while time.monotonic() < end:
            gc.collect()
            if tracemalloc.get_traced_memory()[0] < nbytes:
                return True
            time.sleep(0.01)
        return False
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("named_stream", [False, True])
@pytest.mark.parametrize("exchange", EXCHANGES)
def test_what_has_come_is_not_kept(comm, exchange, named_stream):
    """Also not the last message, though no other one follows."""
    (right, left), x = ring(comm), put(np.zeros(1 << 17))
    comm.stream = pyncclx.backends.select().new_stream() if named_stream else None
    is_level = has_level_memory(lambda: EXCHANGES[exchange](comm, x, right, left), x.nbytes)
    comm.stream = None
    assert is_level


def test_graphs_hold_no_messages_between_nodes(comm, monkeypatch):
    """Also not those of requests that have met; both texts give the reason, and the requests are of use outside."""
    device, (right, left) = pyncclx.backends.select(), ring(comm)
    if device.name == "gpu":
        pytest.skip("the host device is made to believe that it captures")
    monkeypatch.setattr(base, "LONGEST_WAIT_S", 0.1)
    x, y = put(np.full(9, comm.rank)), Output(9, "i8")
    send, receive = comm.Send_init(x, right), comm.Recv_init(y.array, left)
    for _ in range(2):
        Prequest.Startall([send, receive])
        Request.Waitall([send, receive])
    for request, match in ((send, "is on another node"), (receive, "between nodes cannot be in a graph")):
        with monkeypatch.context() as patch:
            patch.setattr(device, "is_capturing", lambda stream: True)
            with raises_everywhere(comm, pyncclx.NotSupported, match=match):
                request.Start()
    Prequest.Startall([send, receive])
    Request.Waitall([send, receive])
    assert y.read().tolist() == [left] * 9


def send(comm, method, array, dest):
    """Send with tag 4, and wait for it."""
    request = getattr(comm, method)(array, dest, 4)
    if method == "Send_init":
        request.Start()
    if request is not None:
        request.Wait()


@pytest.mark.parametrize("method", ["Send", "Ssend", "Isend", "Issend", "Send_init"])
def test_a_send_that_nobody_receives(method, monkeypatch):
    """Its wait ends, names the receiver, and does so at each later call; the others receive."""
    monkeypatch.setenv("PYNCCLX_NODE", str(MPI.COMM_WORLD.rank))
    monkeypatch.setenv("PYNCCLX_TIMEOUT", "0.3")
    context.CONTEXT.reset()
    comm, dest = pyncclx.Communicator().Dup(), MPI.COMM_WORLD.size - 1
    count = 3 if method in ("Ssend", "Issend") else LARGE
    if comm.rank == 0:
        in_vain = rf"{method} with tag 4: rank 0 timed out waiting for rank {dest} to receive"
        began = time.monotonic()
        with pytest.raises(pyncclx.PeerTimeout, match=in_vain):
            send(comm, method, xp.zeros(count, "i8"), dest)
        assert time.monotonic() - began > 0.2
        for call in (comm.synchronize, lambda: comm.Isend(xp.zeros(1, "i8"), dest)):
            with pytest.raises(pyncclx.PeerTimeout, match=in_vain):
                call()
    MPI.Comm.Barrier(comm)
    if comm.rank == dest:
        got = Output(count, "i8")
        comm.Recv(got.array, 0, 4)
        assert not got.read().any()
    MPI.Comm.Barrier(comm)
    with contextlib.suppress(pyncclx.PeerTimeout):
        comm.Free()
    context.CONTEXT.reset()


def test_partitioned_requests_between_nodes_are_refused(comm):
    """Both ends of all raise it. A receive of any tag, which is open meanwhile, gets the program's message."""
    (right, left), room, status = ring(comm), bytearray(1000), MPI.Status()
    request = comm.Irecv([room, MPI.BYTE])
    for tag in range(3):
        receive, send = comm.Precv_init(xp.zeros(8), 2, left, tag), comm.Psend_init(put(np.zeros(8)), 2, right, tag)
        Prequest.Startall([receive, send])
        for end in (send, receive):
            with raises_everywhere(comm, pyncclx.NotSupported, match=r"P.*_init: ranks \d and \d are on different"):
                end.Wait()
    sending = comm.Isend([b"message", MPI.BYTE], right, 5)
    request.Wait(status)
    sending.Wait()
    assert (bytes(room[:7]), status.source, status.tag) == (b"message", left, 5)
