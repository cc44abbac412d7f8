"""NumPy arrays that receive device arrays' messages, by the short way that plain host arrays take beside a GPU."""

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx.communicator import host_first
from support.arrays import HOST, put
from support.labelled_messages import EAGER, LARGE, data_of
from support.reversed_ranks import ring

FORMS = ("Recv", "Irecv and Wait", "Waitall", "Irecv and Waitall with a device array's", "Sendrecv", "Recv of a spec")


def receive(comm, form, array, source, monkeypatch):
    """Receive a message with tag 3 by one of the ways; return its status."""
    status = MPI.Status()
    requests, statuses = [], []
    with monkeypatch.context() as patch:
        patch.setattr(host_first, "looks_closely", lambda: False)  # as with a GPU
        if form == "Recv":
            comm.Recv(array, source, 3, status)
        elif form == "Recv of a spec":
            comm.Recv([array, MPI.INT64_T], source=source, tag=3, status=status)
        elif form == "Sendrecv":
            comm.Sendrecv(np.zeros(2), comm.rank, 9, array, source, 3, status)
            comm.Recv(np.zeros(2), comm.rank, 9)
        else:
            requests.append(comm.Irecv(array, source, 3))
    if form == "Irecv and Wait":
        requests[0].Wait(status)
    elif requests:
        if form != "Waitall":
            requests.append(comm.Isend(put(np.ones(3)), comm.rank, 8))
            requests.append(comm.Irecv(put(np.zeros(3)), comm.rank, 8))
        pyncclx.Request.Waitall(requests, statuses)
        status = statuses[0]
    return status


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("count", [0, 1, 36, EAGER, EAGER + 1, LARGE])
def test_a_plain_array_receives_a_device_array(comm, monkeypatch, form, count):
    right, left = ring(comm)
    room = count + 96  # a message with a device array is longer than its data
    array = np.full(room, -1, "i8")
    sending = comm.Isend(put(data_of(comm.rank, 3, 0, count)), right, 3)
    status = receive(comm, form, array, left, monkeypatch)
    sending.Wait()
    np.testing.assert_array_equal(array[:count], data_of(left, 3, 0, count))
    assert (status.source, status.tag, status.Get_count(MPI.INT64_T)) == (left, 3, count)


@pytest.mark.skipif(HOST, reason="the test above")
def test_small_plain_arrays(comm):
    right, left = ring(comm)
    for count in (1, 36, 1000):
        x, y = np.full(count, comm.rank + 1.0), np.zeros(count)
        pyncclx.Request.Waitall([comm.Irecv(y, left), comm.Isend(x, right)])
        assert (y == left + 1).all()
