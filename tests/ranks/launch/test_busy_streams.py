"""Calls that block the host wait for their arrays' producers, and for nothing else that the program computes."""

import time

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx.arrays import places
from pyncclx.messages import plan
from support import device_memory, legacy_stream
from support.arrays import Dlpack, host_only
from support.forms import FORMS, call
from support.reference import comparing
from support.reversed_ranks import ring
from support.token_case import Case, generator

pytestmark = host_only
streams = pytest.fixture(legacy_stream.installed)
memory = pytest.fixture(device_memory.installed)
LONG = 40_000  # elements of a message that its receiver reads where it is


@pytest.fixture
def comm(streams):
    """Its ranks have met, and what calls need is loaded: that may wait for the device."""
    with pyncclx.Communicator(MPI.COMM_WORLD).Dup() as made:
        made.blocking, made.staging = "host", True
        yield made


@pytest.fixture
def apart(monkeypatch):
    """Each rank is on a pretend node of its own; before the communicator is made."""
    monkeypatch.setenv("PYNCCLX_NODE", str(MPI.COMM_WORLD.rank))


def ramp(comm, count, rank=None):
    return np.arange(count) % 97 + 100.0 * (comm.rank if rank is None else rank)


def total(comm, count):
    return sum(ramp(comm, count, rank) for rank in range(comm.size))


def collectives(comm, x, y):
    for form in FORMS:
        y[:] = -1
        call(comm, form, "Allreduce", x, y, starts=2)
        np.testing.assert_array_equal(y, total(comm, x.size), err_msg=form)
    comm.Bcast(x, 0)
    np.testing.assert_array_equal(x, ramp(comm, x.size, 0))
    x[:] = ramp(comm, x.size)
    comm.Barrier(device=True)


def derived(comm, x, y):
    column = MPI.DOUBLE.Create_vector(4, 1, 2 * comm.size).Create_resized(0, 8).Commit()
    comm.Alltoall([x, 1, column], [y, 1, column])
    every = [ramp(comm, 8 * comm.size, rank).reshape(4, -1)[:, comm.rank] for rank in range(comm.size)]
    np.testing.assert_array_equal(y[: 8 * comm.size].reshape(4, -1)[:, : comm.size], np.stack(every, axis=1))
    column.Free()


def messages(comm, x, y):
    right, left = ring(comm)
    for _ in range(3):  # MPI brings the data of the first
        y[:] = -1
        comm.Sendrecv(x, right, 0, y, left, 0)
        np.testing.assert_array_equal(y, ramp(comm, x.size, left))
        y[:] = -1
        pyncclx.Request.Waitall([comm.Irecv(y, left), comm.Isend(x, right)])
        np.testing.assert_array_equal(y, ramp(comm, x.size, left))
        y[:] = -1
        request = comm.Irecv(y, left)
        comm.Ssend(x, right)
        request.Wait()
        np.testing.assert_array_equal(y, ramp(comm, x.size, left))


KINDS = {"collectives": collectives, "derived": derived, "messages": messages}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [64, LONG])
def test_beside_a_busy_stream(comm, streams, kind, count):
    """Arrays that name no stream are ready: calls must end while the other stream is busy."""
    x, y = ramp(comm, count), np.zeros(count)
    KINDS[kind](comm, x, y)
    with streams.busy(blocking=True):
        KINDS[kind](comm, x, y)


@pytest.mark.usefixtures("apart")
@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [64, LONG])
def test_over_nodes_beside_a_busy_stream(comm, streams, kind, count):
    assert comm.spanning is not None
    test_beside_a_busy_stream(comm, streams, kind, count)


def staged(comm, memory):
    right, left = ring(comm)
    x, y = memory.put(ramp(comm, 50)), memory.put(np.zeros(50))
    receive, send = comm.Recv_init(y.typed("array"), left), comm.Send_init(x.typed("array"), right)
    for request in (receive, send):
        request.Start()
    for request in (receive, send):
        request.Wait()
    np.testing.assert_array_equal(y.host, ramp(comm, 50, left))
    MPI.Attach_buffer(MPI.Alloc_mem(1 << 16))
    request = comm.Irecv(y.typed("array"), left)
    comm.Bsend(x.typed("array"), right)
    request.Wait()
    MPI.Detach_buffer()
    for each in (receive, send):
        each.Free()


def test_staging_beside_a_busy_stream(memory, comm, streams):
    staged(comm, memory)
    with streams.busy(blocking=True):
        staged(comm, memory)


def test_windows_beside_a_busy_stream(comm, streams):
    """What the program has stored is on its current stream, the legacy one: that waits for all streams that block."""
    right, left = ring(comm)
    exposed = comm.Alloc(8, "f8")
    win = pyncclx.Win.Create(exposed, 8, comm=comm)
    win.Fence()
    old = np.zeros(1)
    win.Fetch_and_op(np.ones(1), old, right, 7)
    win.Fence()
    with streams.busy(blocking=False):
        win.Put(ramp(comm, 8), right)
        win.Fence()
        np.testing.assert_array_equal(exposed, ramp(comm, 8, left))
        comm.Barrier()
        win.Lock(right)
        win.Fetch_and_op(np.ones(1), old, right, 7)
        win.Unlock(right)
        assert old[0] == ramp(comm, 8)[7]
    win.Fence()
    win.Free()


def test_a_token_shuffle_beside_a_busy_stream(comm, streams):
    """Its results are new arrays: it comes after what the current stream does."""
    case = Case(comm, generator(comm, 2))
    with case.shuffle, comparing() as compare:
        case.draw().round_trip(compare, "alone")
        with streams.busy(blocking=False):
            case.draw().round_trip(compare, "beside")


def test_a_producer_is_waited_for(comm, streams):
    """What the current stream makes, or those that it waits for, is in the result."""
    x, y = np.zeros(64), np.zeros(64)
    comm.Allreduce(Dlpack(x), y)
    producer = streams.new(blocking=True)

    def produce():
        time.sleep(0.2)
        x[:] = ramp(comm, 64)

    producer.enqueue(produce)
    comm.Allreduce(Dlpack(x), y)
    np.testing.assert_array_equal(y, total(comm, 64))
    right, left = ring(comm)
    x[:] = 0
    producer.enqueue(produce)
    comm.Sendrecv(Dlpack(x), right, 0, y, left, 0)
    np.testing.assert_array_equal(y, ramp(comm, 64, left))


@pytest.mark.parametrize("count", [64, LONG])
def test_a_receive_waits_for_what_was_before_it(comm, streams, monkeypatch, count):
    """Arrays of libraries with streams: the current one may be making them until the call, and goes on after it."""
    monkeypatch.setattr(plan, "is_of_current", lambda _: True)
    right, left = ring(comm)
    x, y = ramp(comm, count), np.zeros(count)
    producer = streams.new(blocking=True)

    def poison():
        time.sleep(0.1)
        y[:] = -1

    for turn in range(4):  # MPI brings the data of the first
        x[:] = ramp(comm, count) + turn
        comm.Barrier()
        producer.enqueue(poison)
        requests = [comm.Irecv(y, left), comm.Isend(x, right)]
        if turn % 2:
            pyncclx.Request.Waitall(requests)
        else:
            with streams.busy(blocking=True):
                pyncclx.Request.Waitall(requests)
        np.testing.assert_array_equal(y, ramp(comm, count, left) + turn)


def test_a_stream_with_a_name(comm, streams):
    """Calls are enqueued on it; the host waits only if the communicator blocks."""
    comm.blocking = "stream"
    x, y = ramp(comm, 64), np.zeros(64)
    comm.Allreduce(x, y)
    y[:] = 0
    with streams.busy(blocking=False) as stream:
        comm.stream = stream
        assert comm.stream is stream
        assert comm.Dup().stream is stream
        comm.Allreduce(x, y)
        comm.Iallreduce(x, y, MPI.MAX)
        assert not y.any()
    assert comm.stream is stream
    comm.synchronize()
    comm.stream = None
    comm.Allreduce(x, y)
    comm.synchronize()
    np.testing.assert_array_equal(y, total(comm, 64))
    with pytest.raises(TypeError, match="stream is 'x'"):
        comm.stream = "x"


@pytest.mark.usefixtures("apart")
@pytest.mark.ranks(2, 3)
def test_a_stream_with_a_name_over_nodes(comm, streams):
    """Calls are enqueued on it, where the current stream is busy."""
    assert comm.spanning is not None
    comm.blocking = "stream"
    x, y, few = ramp(comm, LONG), np.zeros(LONG), np.zeros(64)
    comm.stream = streams.new(blocking=False)
    comm.Allreduce(x, y)
    comm.Allreduce(x[:64], few)
    comm.synchronize()
    with streams.busy(blocking=True):
        for form in FORMS:
            y[:], few[:] = -1, -1
            call(comm, form, "Allreduce", x, y, starts=2)
            call(comm, form, "Allreduce", x[:64], few, starts=2)
            streams.device.synchronize(comm.stream)
            np.testing.assert_array_equal(y, total(comm, LONG), err_msg=form)
            np.testing.assert_array_equal(few, total(comm, 64), err_msg=form)


def test_the_host_device_itself_has_no_such_stream():
    assert places.host_arrays()
    with pyncclx.Communicator(MPI.COMM_WORLD).Dup() as comm:
        comm.blocking = "host"
        x, y = ramp(comm, 10), np.zeros(10)
        comm.Allreduce(x, y)
        np.testing.assert_array_equal(y, total(comm, 10))
