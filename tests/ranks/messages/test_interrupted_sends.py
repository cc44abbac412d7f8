"""Sends that a signal handler ends, wherever Python runs one: after calls of C, and where functions begin."""

import itertools
import sys

import numpy as np
import pytest
from mpi4py import MPI

from pyncclx.messages.progress import ReceiveProgress
from pyncclx.messages.send import Outgoing
from support.arrays import get, put
from support.everywhere import assert_everywhere
from support.labelled_messages import assert_all_read, map_peers_if
from support.reversed_ranks import ring

SHORT, LONG = 1_000, 100_000  # elements of 8 bytes: a message that is copied to a slot, and one that is offered
TAG, NEXT = 3, 4


class Interrupted(BaseException):
    """What the signal handler raises."""


class Interruption:
    """An exception at a point of a call.

    Attributes
    ----------
    is_past : bool
        Whether the call had fewer points.
    """

    def __init__(self, point):
        self._left, self.is_past = point, False

    def __call__(self, frame, event, argument):
        """A profiler: what it raises, the function raises that it is called for."""
        self._left -= event in ("call", "c_return")
        if self._left == 0:
            sys.setprofile(None)
            raise Interrupted

    def end(self, call, *arguments):
        sys.setprofile(self)
        try:
            call(*arguments)
        except Interrupted:
            pass
        finally:
            sys.setprofile(None)
            self.is_past = self._left > 0


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
    """Interrupt a send at a point, then send another message; return whether the call had fewer points."""
    interruption = Interruption(point)
    # The array's memory is overwritten after the call, unless the library keeps it.
    interruption.end(SENDS[name], comm, put(np.full(count, point, "f8")), partner)
    comm.Send(put(np.full(count, -point, "f8")), partner, TAG)
    return interruption.is_past


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
        is_past = False
        if comm.rank % 2:
            problem = receive(comm, count, partner, point) or problem
        else:
            is_past = send(comm, name, count, partner, point)
        if MPI.Comm.sendrecv(comm, is_past, partner, NEXT, None, partner, NEXT) or is_past:
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

    beside = comm.Irecv(other, left, NEXT)
    with monkeypatch.context() as patched:
        patched.setattr(Outgoing, "_launch_offer", launch)
        patched.setattr(ReceiveProgress, "launch_arrived", refuse)
        with pytest.raises(Interrupted):
            comm.Send(put(np.full(LONG, 1.0)), right, TAG)
    comm.Recv(y, left, TAG)
    comm.Send(put(np.full(1, 2.0)), right, NEXT)
    beside.Wait()
    comm.synchronize()
    assert_everywhere(comm, signalled == [True], f"signalled: {signalled}")
    assert_everywhere(comm, set(get(y)) == {1.0} and get(other)[0] == 2.0)
