"""Tests and waits of host arrays' receives that a signal handler ends wherever Python lets it."""

import itertools
import time
from pathlib import Path

import pytest
from mpi4py import MPI

import pyncclx
from pyncclx.requests.host_receive import ENVELOPE_MAGIC
from support.arrays import put
from support.everywhere import assert_everywhere
from support.interruption import CtrlC, meet
from support.labelled_messages import EAGER, assert_all_read, data_of

PACKAGE = Path(pyncclx.__file__).parent
FILES = [str(PACKAGE / each) for each in ("messages/host", "requests", "staging")]
TAG, SECONDS, ROOM = 3, 10.0, 1000
pytestmark = pytest.mark.timeout(100)


@pytest.fixture(scope="module")
def comm():
    with pyncclx.Communicator(MPI.COMM_WORLD).Dup() as made:
        yield made


def send_array(comm, data, partner):
    return comm.Isend(put(data), partner, TAG)


def send_host_array(comm, data, partner):
    return comm.Isend([bytearray(data), MPI.BYTE], partner, TAG)


SENDS = {"device array": send_array, "host array": send_host_array}
# For each call what remains after an interrupt. A call that waits may lose its own message, as MPI's Recv does.
CALLS = {
    "Test": (lambda request, status: request.Test(status), "status"),
    "Get_status": (lambda request, status: request.Get_status(status), "status"),
    "Testany": (lambda request, status: pyncclx.Request.Testany([request], status), "status"),
    "Testsome": (lambda request, status: pyncclx.Request.Testsome([request], [status]), "data"),
    "Wait": (lambda request, status: request.Wait(status), "nothing"),
    "Waitall": (lambda request, status: pyncclx.Request.Waitall([request], [status]), "nothing"),
}


def completed(request, status):
    """Test the request until it is complete, and return whether it is."""
    end = time.monotonic() + SECONDS
    while not (over := request.Test(status)) and time.monotonic() < end:
        pass
    return over


def problem_of(statuses, found, data, source, remains):
    """Return what is wrong with the data or the status of an interrupted call and a `Test` after it."""
    seen = [(each.source, each.tag, each.Get_count(MPI.BYTE)) for each in statuses]
    if remains == "nothing":
        return "an envelope" if found.startswith(ENVELOPE_MAGIC) else ""
    if bytes(found[: data.nbytes]) != data.tobytes():
        return f"data {bytes(found[:16])}, {seen}"
    return "" if remains == "data" or (source, TAG, data.nbytes) in seen else f"{seen}"


@pytest.mark.parametrize("count", [9, EAGER])
@pytest.mark.parametrize("kind", SENDS)
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("begin", ["Irecv", "Recv_init"])
def test_the_message_is_there(comm, begin, name, kind, count):
    partner, problem, found = comm.rank ^ 1, "", bytearray(8 * count + ROOM)
    (call, remains), persistent = CALLS[name], None
    for point in itertools.count(1) if partner < comm.size else ():
        is_past, data = False, data_of(comm.rank & ~1, TAG, point, count)
        if comm.rank % 2:
            if begin == "Irecv":
                request = comm.Irecv([found, MPI.BYTE], partner, TAG)
            else:
                request = persistent = persistent or comm.Recv_init([found, MPI.BYTE], partner, TAG)
                request.Start()
            meet(comm, partner)
            # This message follows the other.
            MPI.Comm.Recv(comm, [bytearray(1), MPI.BYTE], partner, TAG + 1)
            interruption, statuses = CtrlC(point, *FILES), [MPI.Status(), MPI.Status()]
            interruption.end(call, request, statuses[0])
            is_past = interruption.is_past
            wrong = "" if completed(request, statuses[1]) else "active"
            wrong = wrong or problem_of(statuses, found, data, partner, remains)
            problem += f"{point}, {interruption.place}: {wrong}\n" if wrong else ""
            found[:] = b"\xff" * len(found)
        else:
            meet(comm, partner)
            sending = SENDS[kind](comm, data, partner)
            MPI.Comm.Send(comm, [bytearray(1), MPI.BYTE], partner, TAG + 1)
            sending.Wait()
        if meet(comm, partner, is_past) or is_past:
            break
    if persistent is not None:
        persistent.Free()
    assert_everywhere(comm, not problem, problem)
    assert_all_read(comm)
