"""Receives of host arrays that a signal handler ends while they fetch a device array's message."""

import threading

import numpy as np
import pytest
from mpi4py import MPI

from pyncclx.messages.host.fetch import HostFetch
from support.arrays import put
from support.everywhere import assert_everywhere
from support.labelled_messages import EAGER, LARGE, assert_all_read, data_of, map_peers
from support.reversed_ranks import ring

ROOM = 1000  # bytes for an envelope
pytestmark = pytest.mark.one_node  # between nodes messages have no envelopes


class Interrupted(BaseException):
    """What the signal handler raises."""


RECEIVES = {
    "Recv": lambda comm, room, left: comm.Recv(room, left, 1),
    "Sendrecv": lambda comm, room, left: comm.Sendrecv([None, MPI.BYTE], MPI.PROC_NULL, 1, room, left, 1),
    "Irecv": lambda comm, room, left: comm.Irecv(room, left, 1).Wait(),
    "Recv_init": lambda comm, room, left: started(comm.Recv_init(room, left, 1)),
}


# The monitor thread may begin the fetch of a nonblocking receive.
POINTS = [(name, point) for name in RECEIVES for point in ("finish", "_wait", "is_over")]
POINTS += [("Recv", "__init__"), ("Sendrecv", "__init__")]


def started(request):
    request.Start()
    try:
        request.Wait()
    finally:
        request.Free()


@pytest.mark.parametrize("count", [9, EAGER, LARGE])
@pytest.mark.parametrize(("name", "point"), POINTS)
def test_the_next_receive_is_right(comm, monkeypatch, name, count, point):
    """The envelope is not taken for data, and the sender's memory is free soon."""
    map_peers(comm)
    (right, left), found, own = ring(comm), bytearray(8 * count + ROOM), getattr(HostFetch, point)

    def refuse(self, *arguments):
        if threading.current_thread() is not threading.main_thread():
            return own(self, *arguments)
        monkeypatch.undo()  # it comes once
        raise Interrupted

    sendings = [comm.Isend(put(data_of(comm.rank, 1, index, count)), right, 1) for index in range(2)]
    monkeypatch.setattr(HostFetch, point, refuse)
    with pytest.raises(Interrupted):
        RECEIVES[name](comm, [found, MPI.BYTE], left)
    comm.Recv([found, MPI.BYTE], left, 1)
    for sending in sendings:
        sending.Wait()
    comm.synchronize()
    assert_everywhere(comm, np.array_equal(np.frombuffer(found, "i8", count), data_of(left, 1, 1, count)))
    assert_all_read(comm)


def test_a_fetch_that_fails_before_its_call(comm, monkeypatch):
    """The monitor thread has begun it. The call then goes on, and takes nothing else for the data."""
    map_peers(comm)
    (right, left), found, device = ring(comm), bytearray(8 * LARGE + ROOM), comm.endpoint.device
    own, failed = device.copy, threading.Event()

    def fail_once(*arguments):
        if not failed.is_set():
            failed.set()
            raise RuntimeError("once")
        return own(*arguments)

    monkeypatch.setattr(device, "copy", fail_once)
    receiving = comm.Irecv([found, MPI.BYTE], left, 1)
    sending = comm.Issend(put(data_of(comm.rank, 1, 0, LARGE)), right, 1)
    assert_everywhere(comm, failed.wait(20))
    receiving.Wait()
    sending.Wait()
    assert_everywhere(comm, np.array_equal(np.frombuffer(found, "i8", LARGE), data_of(left, 1, 0, LARGE)))
    assert_all_read(comm)
