"""Requests of host receives that the program frees before a device array's message comes: it arrives, as in MPI."""

import time

import numpy as np
import pytest
from mpi4py import MPI

from support.arrays import put
from support.everywhere import assert_everywhere
from support.labelled_messages import EAGER, LARGE, assert_all_read, data_of, map_peers_if
from support.reversed_ranks import ring

ROOM, TAG, SECONDS = 1000, 5, 10.0  # ROOM: bytes for an envelope
pytestmark = pytest.mark.one_node  # between nodes messages have no envelopes


BEGIN = {
    "Irecv": lambda comm, spec, source: comm.Irecv(spec, source, TAG),
    "Recv_init": lambda comm, spec, source: started(comm.Recv_init(spec, source, TAG)),
}


def started(request):
    request.Start()
    return request


def is_released(comm, memory):
    """Whether nothing refers to a bytearray's memory any more, some time later."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        try:
            memory.clear()
        except BufferError:
            comm.endpoint.postbox.receives.unsent.sweep()
        else:
            return True
    return False


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("count", [9, EAGER, LARGE])
@pytest.mark.parametrize("begin", BEGIN)
def test_the_data_arrives(comm, monkeypatch, begin, count, mapped):
    map_peers_if(comm, mapped, monkeypatch)
    (right, left), found = ring(comm), bytearray(8 * count + ROOM)
    receiving = BEGIN[begin](comm, [found, MPI.BYTE], left)
    receiving.Free()
    is_null = receiving == MPI.REQUEST_NULL and receiving.Test()
    del receiving  # it refers to the memory, as mpi4py's would
    MPI.Comm.Barrier(comm)
    sending = comm.Issend(put(data_of(comm.rank, TAG, 0, count)), right, TAG)
    end, expected = time.monotonic() + SECONDS, data_of(left, TAG, 0, count)
    while not np.array_equal(np.frombuffer(bytes(found), "i8", count), expected) and time.monotonic() < end:
        comm.Iprobe(left, TAG + 1)
    is_right = np.array_equal(np.frombuffer(bytes(found), "i8", count), expected)
    if is_right:
        sending.Wait()
    assert_everywhere(comm, is_null and is_right)
    assert_all_read(comm)
    assert_everywhere(comm, is_released(comm, found))
