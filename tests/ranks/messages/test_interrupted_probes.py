"""Matched probes, and receives of host arrays, that Ctrl-C ends wherever Python lets it: nothing is lost."""

import itertools
import time
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from support.arrays import get, put
from support.everywhere import assert_everywhere
from support.interruption import CtrlC, meet
from support.labelled_messages import assert_all_read

PACKAGE = Path(pyncclx.__file__).parent
FILES = [str(PACKAGE / each) for each in ("messages", "communicator/point_to_point", "communicator/probes", "requests")]
TAG, SECONDS, COUNT = 3, 5.0, 9
pytestmark = [
    pytest.mark.timeout(100),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # Python goes on in destructors
]


@pytest.fixture(scope="module")
def comm():
    with pyncclx.Communicator(MPI.COMM_WORLD).Dup() as made:
        yield made


def until(condition):
    """Return what a function returns once it is true, or after some seconds."""
    end = time.monotonic() + SECONDS
    while not (value := condition()) and time.monotonic() < end:
        pass
    return value


def has_come(comm, partner):
    return until(lambda: MPI.Comm.Iprobe(comm, partner, TAG))


def send_array(comm, value, partner):
    return comm.Isend(put(np.full(COUNT, value, "f8")), partner, TAG)


def send_host_array(comm, value, partner):
    return comm.Isend([bytearray(np.full(COUNT, value, "f8")), MPI.BYTE], partner, TAG)


def send_object(comm, value, partner):
    return comm.isend(value, partner, TAG)


def receive_array(comm, partner, message=None):
    message, array = message or until(lambda: comm.Improbe(partner, TAG)), put(np.zeros(COUNT, "f8"))
    if message is not None:
        message.Recv(array)
    comm.synchronize()
    return get(array)[-1]


def receive_object(comm, partner, message=None):
    message = message or until(lambda: comm.improbe(partner, TAG))
    return None if message is None else message.recv()


SENDS = {
    "array": (send_array, receive_array, ("Mprobe", "Improbe")),
    "host array": (send_host_array, receive_array, ("Mprobe", "Improbe")),
    "object": (send_object, receive_object, ("mprobe", "improbe")),
}


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, how in SENDS.items() for name in how[2]])
def test_the_next_call_gets_the_message(comm, kind, name, held):
    """An earlier probe may hold it."""
    (send, receive, _), partner, problem = SENDS[kind], comm.rank ^ 1, ""
    for point in itertools.count(1) if partner < comm.size else ():
        is_past = False
        if comm.rank % 2:
            has_come(comm, partner)
            if held and kind != "object":
                comm.Probe(partner, TAG)
            interruption, kept, expected = CtrlC(point, *FILES), [], [point, -point]
            interruption.end(lambda: kept.append(getattr(comm, name)(partner, TAG)))  # noqa: B023  it is called now
            meet(comm, partner)
            values = [receive(comm, partner, *kept), receive(comm, partner)]
            is_past = interruption.is_past or values != expected
            problem = problem or ("" if values == expected else f"{point}, {interruption.place}: {values}")
        else:
            requests = [send(comm, point, partner)]
            meet(comm, partner)
            requests.append(send(comm, -point, partner))
            pyncclx.Request.Waitall(requests)
        if meet(comm, partner, is_past) or is_past:
            break
    assert_everywhere(comm, not problem, problem)
    assert_all_read(comm)


@pytest.mark.parametrize("spec", ["array", "vector"])
@pytest.mark.parametrize("name", ["Irecv", "Isendrecv", "Isendrecv_replace"])
def test_a_host_receive_is_taken_back(comm, name, spec):
    """Its memory may be gone: no later message goes there."""
    partner, problem, datatype = comm.rank ^ 1, "", MPI.BYTE.Create_vector(1024, 1, 2).Commit()
    for point in itertools.count(1) if partner < comm.size else ():
        is_past, interruption = False, CtrlC(point, *FILES)
        if comm.rank % 2:
            found = bytearray(2048)
            buffer = [found, MPI.BYTE] if spec == "array" else [found, 1, datatype]
            sides = {
                "Irecv": (buffer, partner, TAG),
                "Isendrecv": ([None, MPI.BYTE], MPI.PROC_NULL, TAG, buffer, partner, TAG),
                "Isendrecv_replace": (buffer, MPI.PROC_NULL, TAG, partner, TAG),
            }
            kept = []
            interruption.end(lambda: kept.append(getattr(comm, name)(*sides[name])))  # noqa: B023  it is called now
            meet(comm, partner)
            is_past = interruption.is_past
            if is_past:
                kept[0].Wait()
            else:
                is_there = has_come(comm, partner)
                problem = problem or ("" if is_there else f"{point}, {interruption.place}: no message")
                is_past = not is_there
                if is_there:
                    comm.Recv([found, MPI.BYTE], partner, TAG)
        else:
            meet(comm, partner)
            comm.Send([bytearray(8), MPI.BYTE], partner, TAG)
        if meet(comm, partner, is_past) or is_past:
            break
    assert_everywhere(comm, not problem, problem)
    datatype.Free()
