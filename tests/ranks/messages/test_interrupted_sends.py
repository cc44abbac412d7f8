"""Sends that a signal handler ends, wherever Python runs one: after calls of C, and where functions begin."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx.messages.progress.polling import ReceiveProgress
from pyncclx.messages.send import Outgoing
from support.arrays import get, put
from support.everywhere import assert_everywhere
from support.interruption import Interrupted, Interruption, meet
from support.labelled_messages import assert_all_read, map_peers_if
from support.reversed_ranks import ring

PACKAGE = Path(pyncclx.__file__).parent
FILES = [str(PACKAGE / each) for each in ("messages", "communicator", "requests", "launch", "team")]
SHORT, LONG = 1_000, 100_000  # elements of 8 bytes: a message that is copied to a slot, and one that is offered
TAG, OTHER = 3, 4


def started(comm, x, partner):
    request = comm.Send_init(x, partner, TAG)
    try:
        request.Start()
        request.Wait()
    finally:
        request.Free()


SENDS = {
    "Send": lambda comm, x, partner: comm.Send(x, partner, TAG),
    "Ssend": lambda comm, x, partner: comm.Ssend(x, partner, TAG),
    "Isend": lambda comm, x, partner: comm.Isend(x, partner, TAG).Wait(),
    "Sendrecv": lambda comm, x, partner: comm.Sendrecv(x, partner, TAG, put(np.zeros(1)), MPI.PROC_NULL),
    "Isendrecv": lambda comm, x, partner: comm.Isendrecv(x, partner, TAG, put(np.zeros(1)), MPI.PROC_NULL).Wait(),
    "Send_init": started,
}


def send(comm, name, count, partner, point):
    """Interrupt a send at a point, then send another message; return whether the call had fewer, and the point."""
    interruption = Interruption(point, *FILES)
    # The array's memory is overwritten after the call, unless the library keeps it.
    interruption.end(SENDS[name], comm, put(np.full(count, point, "f8")), partner)
    comm.Send(put(np.full(count, -point, "f8")), partner, TAG)
    return interruption.is_past, interruption.place


def receive(comm, count, partner, point):
    """Receive what the interrupted call has sent, if anything, and the next message; return what is wrong."""
    y = put(np.zeros(count, "f8"))
    comm.Recv(y, partner, TAG)
    comm.synchronize()
    first = get(y).copy()
    if first[0] == point:
        comm.Recv(y, partner, TAG)
        comm.synchronize()
    wrong = [set(each) for each, value in ((first, first[0]), (get(y), -point)) if set(each) != {value}]
    return f"point {point}: {wrong}" if wrong else ""


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Python goes on in destructors
@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("count", [SHORT, LONG])
@pytest.mark.parametrize("name", SENDS)
def test_a_message_is_sent_whole_or_not_at_all(comm, name, count, mapped, monkeypatch):
    map_peers_if(comm, mapped, monkeypatch)
    partner, problem = comm.rank ^ 1, ""
    for point in itertools.count(1) if partner < comm.size else ():
        is_past, found, place = False, "", ""
        if comm.rank % 2:
            found = receive(comm, count, partner, point)
        else:
            is_past, place = send(comm, name, count, partner, point)
        their_end, their_place = meet(comm, partner, (is_past, place))
        problem = f"{their_place}, {found}" if found else problem
        if is_past or their_end:
            break
    assert_everywhere(comm, not problem, problem)
    assert_all_read(comm)


@pytest.mark.one_node  # between nodes no message is offered
def test_what_has_been_signalled_is_not_signalled_again(comm, monkeypatch):
    """Another message may have the place by then."""
    map_peers_if(comm, True, monkeypatch)
    (right, left), signalled = ring(comm), []
    own, y, other = Outgoing._launch_offer, put(np.zeros(LONG)), put(np.zeros(1))

    def launch(self, stream, *, ready, wait):
        signalled.append(ready)
        own(self, stream, ready=ready, wait=wait)

    def refuse(self):
        raise Interrupted

    beside = comm.Irecv(other, left, OTHER)
    with monkeypatch.context() as patched:
        patched.setattr(Outgoing, "_launch_offer", launch)
        patched.setattr(ReceiveProgress, "launch_arrived", refuse)
        with pytest.raises(Interrupted):
            comm.Send(put(np.full(LONG, 1.0)), right, TAG)
    MPI.Comm.Barrier(comm)  # a receiver that reads at once spares the sender the poll that is refused
    comm.Recv(y, left, TAG)
    comm.Send(put(np.full(1, 2.0)), right, OTHER)
    beside.Wait()
    comm.synchronize()
    assert_everywhere(comm, signalled == [True], f"signalled: {signalled}")
    assert_everywhere(comm, set(get(y)) == {1.0} and get(other)[0] == 2.0)
