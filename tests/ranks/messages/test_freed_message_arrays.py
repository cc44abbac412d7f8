"""Arrays of messages that the program drops at once: their memory stays until the device is done with it.

Tests run with PYNCCLX_SANITIZE=1, under which the host device overwrites memory that is freed.
"""

import numpy as np
import pytest

from pyncclx import backends
from support.arrays import get, put, xp
from support.everywhere import assert_everywhere
from support.labelled_messages import EAGER, LARGE, data_of, map_peers
from support.reversed_ranks import ring

CALLS = 6
ring = pytest.fixture(ring)


def isend(comm, x, dest, tag):
    comm.Isend(x, dest, tag).Wait()


def start(comm, x, dest, tag):
    request = comm.Send_init(x, dest, tag)
    request.Start()
    request.Wait()
    request.Free()


def freed(comm, x, dest, tag):
    comm.Isend(x, dest, tag).Free()


def dropped(comm, x, dest, tag):
    comm.Isend(x, dest, tag)


SENDS = {"Isend": isend, "Send_init": start, "freed": freed, "dropped": dropped}


@pytest.fixture(autouse=True)
def named_stream(comm):
    """The program has named a stream, behind which its arrays are not allocated."""
    map_peers(comm)
    comm.stream = backends.select().new_stream()
    yield
    comm.synchronize()
    comm.stream = None


def slowed(comm):
    """Give the stream something to do before what comes next."""
    x = xp.ones(200_000, "f4")
    comm.Allreduce(x, xp.empty_like(x))


@pytest.mark.parametrize("send", SENDS)
def test_what_is_sent(comm, ring, send):
    above, below = ring
    received = [xp.empty(EAGER, "i8") for _ in range(CALLS)]
    receives = [comm.Irecv(each, below, 1) for each in received]
    slowed(comm)
    for call in range(CALLS):
        SENDS[send](comm, put(data_of(comm.rank, 1, call, EAGER)), above, 1)
    for request in receives:
        request.Wait()
    comm.synchronize()
    wrong = [call for call in range(CALLS) if not np.array_equal(get(received[call]), data_of(below, 1, call, EAGER))]
    assert_everywhere(comm, not wrong, f"messages {wrong}")


@pytest.mark.parametrize("count", [EAGER, LARGE])
def test_what_is_received_and_dropped(comm, ring, count):
    """Nothing else is written."""
    above, below = ring
    sending = [comm.Isend(put(data_of(comm.rank, 1, call, count)), above, 1) for call in range(CALLS)]
    slowed(comm)
    for call in range(CALLS):
        if call % 3 == 0:
            comm.Recv(xp.empty(count, "i8"), below, 1)
        elif call % 3 == 1:
            comm.Irecv(xp.empty(count, "i8"), below, 1).Wait()
        else:
            comm.Irecv(xp.empty(count, "i8"), below, 1).Free()
    others = [put(np.full(count, call, "i8")) for call in range(CALLS)]
    for request in sending:
        request.Wait()
    comm.synchronize()
    wrong = [call for call in range(CALLS) if not (get(others[call]) == call).all()]
    assert_everywhere(comm, not wrong, f"arrays {wrong}")
