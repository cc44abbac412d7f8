"""Receives that a signal handler ends, wherever Python runs one: their message is received, or the next receive's."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from support.arrays import get, put, xp
from support.everywhere import assert_everywhere
from support.interruption import Interruption, meet
from support.labelled_messages import assert_all_read, map_peers_if

PACKAGE = Path(pyncclx.__file__).parent
FILES = [str(PACKAGE / each) for each in ("messages", "communicator", "requests")]
# Elements of 8 bytes: fewer than an envelope has, a message that is copied to a slot, and one that is offered.
FEW, SHORT, LONG = 9, 1_000, 100_000
TAG = 3
ROOM = 2048  # bytes of a host array
pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # Python goes on in destructors
]


def started(request):
    try:
        request.Start()
        request.Wait()
    finally:
        if not request.Test():
            request.Cancel()
        request.Free()


RECEIVES = {
    "Recv": lambda comm, y, partner, tag: comm.Recv(y, partner, tag),
    "Irecv": lambda comm, y, partner, tag: comm.Irecv(y, partner, tag).Wait(),
    "Sendrecv": lambda comm, y, partner, tag: comm.Sendrecv(xp.zeros(1), MPI.PROC_NULL, 0, y, partner, tag),
    "Isendrecv": lambda comm, y, partner, tag: comm.Isendrecv(xp.zeros(1), MPI.PROC_NULL, 0, y, partner, tag).Wait(),
    "Recv_init": lambda comm, y, partner, tag: started(comm.Recv_init(y, partner, tag)),
}


@pytest.fixture(scope="module")
def comm():
    with pyncclx.Communicator(MPI.COMM_WORLD).Dup() as made:
        yield made


def receive(comm, name, count, partner, point):
    """Interrupt a receive at a point, then receive until the next message; return what is wrong, and the point."""
    interruption = Interruption(point, *FILES)
    # The array's memory is overwritten after the call, unless the library keeps it.
    interruption.end(RECEIVES[name], comm, put(np.zeros(count, "f8")), partner, TAG)
    meet(comm, partner)
    y, values = put(np.zeros(count, "f8")), []
    while -point not in values and len(values) < 2:
        comm.Recv(y, partner, TAG)
        comm.synchronize()
        values.append(*set(get(y).tolist()) if len(set(get(y).tolist())) == 1 else (0,))
    wrong = values not in ([point, -point], [-point])
    return interruption.is_past, f"point {point}, {interruption.place}: {values}" if wrong else ""


def send(comm, count, partner, point):
    """Send the message of the call that is interrupted, and later the next one."""
    first = comm.Isend(put(np.full(count, point, "f8")), partner, TAG)
    meet(comm, partner)
    comm.Send(put(np.full(count, -point, "f8")), partner, TAG)
    first.Wait()


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("count", [FEW, SHORT, LONG])
@pytest.mark.parametrize("name", RECEIVES)
def test_the_next_receive_gets_the_next_message(comm, name, count, mapped, monkeypatch):
    """Or the message itself, if the interrupted one has not."""
    map_peers_if(comm, mapped, monkeypatch)
    partner, problem = comm.rank ^ 1, ""
    for point in itertools.count(1, 2) if partner < comm.size else ():
        is_past = False
        if comm.rank % 2:
            is_past, found = receive(comm, name, count, partner, point)
            problem = problem or found
        else:
            send(comm, count, partner, point)
        comm.synchronize()
        if meet(comm, partner, is_past) or is_past:
            break
    assert_everywhere(comm, not problem, problem)
    assert_all_read(comm)


def until_true(request):
    while not request.Test():
        pass


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("count", [FEW, LONG])
def test_a_wait_after_an_interrupted_test_gets_the_message(comm, count, mapped, monkeypatch):
    map_peers_if(comm, mapped, monkeypatch)
    partner, problem = comm.rank ^ 1, ""
    for point in itertools.count(1) if partner < comm.size else ():
        is_past, y = False, put(np.zeros(count, "f8"))
        if comm.rank % 2:
            request, interruption = comm.Irecv(y, partner, TAG), Interruption(point, *FILES)
            interruption.end(until_true, request)
            request.Wait()
            comm.synchronize()
            is_past, found = interruption.is_past, set(get(y).tolist())
            if found != {point}:
                problem = problem or f"point {point}, {interruption.place}: {found}"
        else:
            comm.Isend(put(np.full(count, point, "f8")), partner, TAG).Wait()
        comm.synchronize()
        if meet(comm, partner, is_past) or is_past:
            break
    assert_everywhere(comm, not problem, problem)
    assert_all_read(comm)
