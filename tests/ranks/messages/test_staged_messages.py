"""Short messages of calls that block the host: MPI moves copies, whoever sends or receives at the other end."""

import gc

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx.messages.memory.bounce import SLOT_NBYTES
from pyncclx.messages.plan import STAGED_NBYTES
from support import gpu_streams
from support.arrays import get, host_only, xp
from support.reversed_ranks import ring

LONGEST = SLOT_NBYTES // 8
MOST, MOST_OF_ISEND = STAGED_NBYTES["Send"] // 8, STAGED_NBYTES["Isend"] // 8
COUNTS = (1, 3, 500, MOST_OF_ISEND, MOST_OF_ISEND + 1, LONGEST, LONGEST + 1, MOST, MOST + 1)
SPARE = 80  # elements behind the data: a host array needs them where kernels send


@pytest.fixture
def comm():
    with pyncclx.Communicator(MPI.COMM_WORLD).Dup() as made:
        made.blocking = "host"
        yield made


def ramp(rank, count, call=0):
    return np.arange(count) % 89 + 1000.0 * rank + 100_000.0 * call


def receives(comm, count, receive):
    """Call `receive` with a poisoned array, and compare what it has received with the left rank's."""
    y, status = xp.full(count + SPARE, -1.0), MPI.Status()
    receive(y, status)
    found, left = get(y), ring(comm)[1]
    np.testing.assert_array_equal(found[:count], ramp(left, count))
    np.testing.assert_array_equal(found[count:], -1.0)
    assert (status.source, status.tag, status.Get_count(MPI.DOUBLE)) == (left, 7, count)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("sends", ["Send", "Isend", "Ssend", "enqueued"])
def test_any_send_is_received(comm, sends, count):
    """Kernels move the data of a synchronous send, and of a communicator whose calls do not block."""
    if sends == "Send" and count > LONGEST:
        pytest.skip("all ranks would wait for their receivers")
    (right, left), x = ring(comm), xp.asarray(ramp(comm.rank, count))
    for _ in range(3):  # the data of the first message goes through MPI in any case
        comm.blocking = "stream" if sends == "enqueued" else "host"
        if sends == "Ssend":
            sent = comm.Issend(x, right, 7)
        else:
            sent = comm.Isend(x, right, 7) if sends != "Send" else comm.Send(x, right, 7)
        comm.blocking = "host"
        if sends == "Isend":
            receives(comm, count, lambda y, status: comm.Irecv(y, left, 7).Wait(status))
        else:
            receives(comm, count, lambda y, status: comm.Recv(y, left, 7, status))
        if sent is not None:
            sent.Wait()


@pytest.mark.parametrize("count", COUNTS)
def test_exchange(comm, count):
    (right, left), x = ring(comm), xp.asarray(ramp(comm.rank, count))
    for _ in range(3):
        receives(comm, count, lambda y, status: comm.Sendrecv(x, right, 7, y, left, 7, status))


@host_only
@pytest.mark.parametrize("count", COUNTS)
def test_a_host_array_receives_the_data_alone(comm, count):
    """mpi4py's own `Recv` gets the data, although there is no room for an envelope."""
    (right, left), x, y = ring(comm), ramp(comm.rank, count), np.full(count, -1.0)
    if count > LONGEST:
        pytest.skip("kernels move it")
    comm.Send(x, right, 7)
    MPI.Comm.Recv(comm, [y, MPI.DOUBLE], left, 7)
    np.testing.assert_array_equal(y, ramp(left, count))


@pytest.mark.parametrize("count", [3, 4096])
def test_the_array_is_free_at_once(comm, count):
    """Requests are dropped, freed, or waited for last; the array changes before."""
    right, left = ring(comm)
    x, requests = xp.empty(count), []
    for call in range(12):
        x[:] = xp.asarray(ramp(comm.rank, count, call))
        request = comm.Isend(x, right, call)
        if call % 3 == 0:
            requests.append(request)
        elif call % 3 == 1:
            request.Free()
            assert not request
        del request
    gc.collect()
    x[:] = -7.0
    for call in range(12):
        y = xp.full(count, -1.0)
        comm.Recv(y, left, call)
        np.testing.assert_array_equal(get(y), ramp(left, count, call), err_msg=f"message {call}")
    MPI.Request.Waitall(requests)
    assert not any(requests)


def test_in_lists_with_other_requests(comm):
    """Requests of a communicator whose calls block complete in lists, with requests of others."""
    (right, left), x, y = ring(comm), xp.asarray(ramp(comm.rank, 50)), xp.full(50, -1.0)
    for complete in (pyncclx.Request.Waitall, MPI.Request.Waitall):
        y[:] = -1.0
        complete([comm.Irecv(y, left), comm.Isend(x, right)])
        np.testing.assert_array_equal(get(y), ramp(left, 50))
    for complete in (pyncclx.Request.Waitany, pyncclx.Request.Waitsome):
        y[:] = -1.0
        requests = [comm.Isend(x, right), comm.Irecv(y, left), MPI.REQUEST_NULL]
        while any(requests):
            complete(requests)
        np.testing.assert_array_equal(get(y), ramp(left, 50))
    requests = [comm.Isend(x, right), comm.Irecv(y, left)]
    while not pyncclx.Request.Testall(requests):
        pass


@pytest.mark.parametrize("count", [40, 4000])
@pytest.mark.parametrize("call", ["Recv", "Irecv", "Sendrecv"])
def test_a_message_that_is_too_long(comm, call, count):
    """Nothing is lost: the next message arrives, and nothing is written behind the array."""
    (right, left), x = ring(comm), xp.asarray(ramp(comm.rank, count))
    y = xp.full(count, -1.0)
    calls = {
        "Recv": lambda: (comm.Send(x, right, 7), comm.Recv(y[: count // 2], left, 7)),
        "Irecv": lambda: (comm.Send(x, right, 7), comm.Irecv(y[: count // 2], left, 7).Wait()),
        "Sendrecv": lambda: comm.Sendrecv(x, right, 7, y[: count // 2], left, 7),
    }
    with pytest.raises(MPI.Exception) as raised:
        calls[call]()
    assert raised.value.Get_error_class() == MPI.ERR_TRUNCATE
    np.testing.assert_array_equal(get(y)[count // 2 :], -1.0)
    receives(comm, count, lambda y, status: comm.Sendrecv(x, right, 7, y, left, 7, status))


@host_only
def test_copies_are_not_launched():
    """A `Sendrecv` launches no kernel; the host waits once for each of its two copies."""
    with gpu_streams.installed() as driver, pyncclx.Communicator(MPI.COMM_WORLD).Dup() as comm:
        comm.blocking = "host"
        (right, left), x, y = ring(comm), ramp(comm.rank, 50), np.full(50, -1.0)
        for _ in range(2):
            driver.taken()
            comm.Sendrecv(x, right, 7, y, left, 7)
            calls = [call for call, *_ in driver.taken()]
            assert "cuLaunchKernelEx" not in calls
            assert calls.count("synchronize") == 2
        np.testing.assert_array_equal(y, ramp(left, 50))
