"""Arguments that are no statuses: mpi4py raises TypeError, and so does the library, before a message is taken."""

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from support.arrays import get, put, xp
from support.everywhere import assert_everywhere
from support.labelled_messages import EAGER, LARGE, assert_all_read, data_of
from support.reversed_ranks import ring

ROOM, TAG = 1000, 5  # of the room: bytes for an envelope
NOTHING = xp.zeros(1), MPI.PROC_NULL, 0
CALLS = {
    "Recv": lambda comm, y, left, wrong: comm.Recv(y, left, TAG, wrong),
    "Sendrecv": lambda comm, y, left, wrong: comm.Sendrecv(*NOTHING, y, left, TAG, wrong),
    "Sendrecv_replace": lambda comm, y, left, wrong: comm.Sendrecv_replace(y, *NOTHING[1:], left, TAG, wrong),
    "Probe": lambda comm, y, left, wrong: comm.Probe(left, TAG, wrong),
    "Iprobe": lambda comm, y, left, wrong: comm.Iprobe(left, TAG, wrong),
    "Mprobe": lambda comm, y, left, wrong: comm.Mprobe(left, TAG, wrong),
    "Improbe": lambda comm, y, left, wrong: comm.Improbe(left, TAG, wrong),
}
ONE = {
    "Wait": lambda request, wrong: request.Wait(wrong),
    "wait": lambda request, wrong: request.wait(wrong),
    "Test": lambda request, wrong: request.Test(wrong),
    "Get_status": lambda request, wrong: request.Get_status(wrong),
    "Waitany": lambda request, wrong: pyncclx.Request.Waitany([request], wrong),
    "Testany": lambda request, wrong: pyncclx.Request.Testany([request], wrong),
    "testany": lambda request, wrong: pyncclx.Request.testany([request], wrong),
}
MANY = ("Waitall", "waitall", "Testall", "testall", "Waitsome", "waitsome", "Testsome", "testsome")
WRONG = 5, "status"


def memory(kind, count):
    return [bytearray(8 * count + ROOM), MPI.BYTE] if kind == "host" else put(np.full(count, -1, "i8"))


def values(kind, y, count):
    return np.frombuffer(y[0], "i8", count) if kind == "host" else get(y)


@pytest.fixture(params=["host", "device"])
def sender(request):
    return request.param


@pytest.fixture(params=["host", "device"])
def receiver(request):
    return request.param


def begin(comm, sender, right, count):
    sent = data_of(comm.rank, TAG, 0, count)
    return comm.Isend([bytearray(sent.tobytes()), MPI.BYTE] if sender == "host" else put(sent), right, TAG)


def assert_arrived(comm, receiver, y, left, sending):
    sending.Wait()
    count = (len(y[0]) - ROOM) // 8 if receiver == "host" else len(y)
    assert_everywhere(comm, np.array_equal(values(receiver, y, count), data_of(left, TAG, 0, count)))
    assert_all_read(comm)


@pytest.mark.parametrize("count", [9, EAGER, LARGE])
@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("name", CALLS)
def test_blocking_calls(comm, name, wrong, count, sender, receiver):
    """The next receive gets the message."""
    right, left = ring(comm)
    y = memory(receiver, count)
    sending = begin(comm, sender, right, count)
    with pytest.raises(TypeError, match="status"):
        CALLS[name](comm, y, left, wrong)
    comm.Recv(y, left, TAG)
    assert_arrived(comm, receiver, y, left, sending)


@pytest.mark.parametrize("count", [9, LARGE])
@pytest.mark.parametrize("name", ["Recv", "recv"])
def test_matched_messages(comm, name, count, sender, receiver):
    right, left = ring(comm)
    y = memory(receiver, count)
    sending = begin(comm, sender, right, count)
    message = comm.Mprobe(left, TAG)
    with pytest.raises(TypeError, match="status"):
        message.Recv(y, 5) if name == "Recv" else message.recv(5)
    message.Recv(y)
    assert_arrived(comm, receiver, y, left, sending)


def test_objects_that_a_probe_holds(comm):
    right, left = ring(comm)
    sending = comm.isend(bytes(1500), right, TAG)
    comm.Probe(left, TAG)
    for receive in (comm.recv, lambda **more: comm.sendrecv(None, MPI.PROC_NULL, **more)):
        with pytest.raises(TypeError):
            receive(source=left, status=5, **({"tag": TAG} if receive == comm.recv else {"recvtag": TAG}))
    found = comm.recv(source=left, tag=TAG)
    sending.wait()
    assert_everywhere(comm, found == bytes(1500))


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("name", [*ONE, *MANY])
def test_requests(comm, name, wrong, sender, receiver):
    """The request stays active."""
    right, left = ring(comm)
    y = memory(receiver, EAGER)
    receiving, sending = comm.Irecv(y, left, TAG), begin(comm, sender, right, EAGER)
    while not receiving.Get_status():
        pass
    with pytest.raises(TypeError):
        ONE[name](receiving, wrong) if name in ONE else getattr(pyncclx.Request, name)([receiving], [wrong])
    receiving.Wait()
    assert_arrived(comm, receiver, y, left, sending)
