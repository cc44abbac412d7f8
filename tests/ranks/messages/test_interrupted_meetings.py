"""Receives and probes of any tag that a signal handler ends, while the peer's partitioned request waits."""

import itertools
import os
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from support.arrays import put, xp
from support.everywhere import assert_everywhere
from support.interruption import Interruption, meet

PACKAGE = Path(pyncclx.__file__).parent
FILES = [str(PACKAGE / each) for each in ("messages", "communicator", "requests")]
ROOM, TAG, SECONDS = 2048, 3, 5.0  # of the room: bytes
pytestmark = [
    pytest.mark.timeout(100),
    pytest.mark.one_node,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # Python goes on in destructors
]


# The call to interrupt, after those that begin it.
CALLS = {
    "Recv": lambda comm, found, partner: partial(comm.Recv, found, partner, MPI.ANY_TAG),
    "Irecv": lambda comm, found, partner: comm.Irecv(found, partner, MPI.ANY_TAG).Wait,
    "Sendrecv": lambda comm, found, partner: partial(
        comm.Sendrecv, bytearray(ROOM), MPI.PROC_NULL, 0, found, partner, MPI.ANY_TAG
    ),
    "Probe": lambda comm, found, partner: partial(comm.Probe, partner, MPI.ANY_TAG),
    "device Recv": lambda comm, found, partner: partial(comm.Recv, put(np.zeros(ROOM, "u1")), partner, MPI.ANY_TAG),
    "device Irecv": lambda comm, found, partner: comm.Irecv(put(np.zeros(ROOM, "u1")), partner, MPI.ANY_TAG).Wait,
}


def is_over(request):
    end = time.monotonic() + SECONDS
    while not request.Test():
        if time.monotonic() > end:
            return False
        os.sched_yield()
    return True


def interrupted(comm, own, name, x, partner, point):
    """Interrupt a call that receives a message; return the partitioned request, and the interruption."""
    interruption, found = Interruption(point, *FILES), bytearray(ROOM)
    call = CALLS[name](own, [found, MPI.BYTE], partner)
    interruption.end(call)
    if name == "Irecv" and call.__self__:
        call()
    del call
    meet(comm, partner)
    if own.Iprobe(partner, TAG):
        own.Recv([found, MPI.BYTE], partner, TAG)
    ends = own.Psend_init(x, 2, partner, 0)
    ends.Start()
    ends.Pready_range(0, 1)
    return ends, interruption


@pytest.mark.parametrize("name", CALLS)
def test_the_partitioned_request_goes_on(comm, name):
    own, partner, problem, ended = comm.Dup(), comm.rank ^ 1, "", True
    x = xp.zeros(8)
    for point in itertools.count(1) if partner < comm.size else ():
        is_past, place = False, ""
        if comm.rank % 2:
            ends, interruption = interrupted(comm, own, name, x, partner, point)
            is_past, place = interruption.is_past, interruption.place
        else:
            ends = own.Precv_init(x, 2, partner, 0)
            ends.Start()  # its offer comes first
            sending = MPI.Comm.Isend(own, bytearray(ROOM), partner, TAG)
            meet(comm, partner)
            sending.Wait()
        ended = is_over(ends)
        problem = "" if ended else f"point {point}, {place}"
        if meet(comm, partner, is_past or not ended) or is_past or not ended:
            break
        ends.Free()
    assert_everywhere(comm, not problem, problem)
    own.synchronize()
    if partner < comm.size:
        ends.Free()
    own.Free()
