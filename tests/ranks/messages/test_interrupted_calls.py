"""Signals whose handlers raise while mpi4py's own calls complete requests of device arrays, in callbacks of MPI's."""

import numpy as np
import pytest
from mpi4py import MPI

from support.alarms import raising
from support.arrays import get, put, xp
from support.everywhere import assert_everywhere
from support.labelled_messages import LARGE, data_of, map_peers
from support.reversed_ranks import ring

TAG, AFTER_S = 7, 0.2


class Interrupted(BaseException):
    """What a handler of the program raises."""


class TooLate(TimeoutError):
    """What another one raises, for a time limit."""


def waitall(requests):
    MPI.Request.Waitall(requests)


def waitall_in_turn(requests):
    """Only mpi4py's own `Wait` of the last one has no other request beside it."""
    for request in requests:
        MPI.Request.Wait(request)
    requests[0].Wait()


@pytest.mark.parametrize("kind", [Interrupted, TooLate])
@pytest.mark.parametrize("number", [2, 3])
@pytest.mark.parametrize("wait", [waitall, waitall_in_turn])
def test_a_handler_that_raises(comm, wait, number, kind):
    """The program gets the exception, though neither MPI nor mpi4py passes it on, and the next messages are right."""
    map_peers(comm)
    right, left = ring(comm)
    own = comm.Dup()
    requests = [own.Irecv(xp.zeros(LARGE, "i8"), left, tag) for tag in range(number)]
    error = None
    with raising(kind, AFTER_S):
        try:
            wait(requests)
            own.Iprobe(left, TAG)
            own.Isend(xp.zeros(1, "i8"), MPI.PROC_NULL).Wait()
        except kind as raised:
            error = raised
    assert_everywhere(comm, error is not None and error.args == ("by the handler",), repr(error))
    for request in requests:
        if request._work.active:
            request.Cancel()
            request.Wait()
    sent, received = put(data_of(comm.rank, TAG, 0, LARGE)), xp.zeros(LARGE, "i8")
    own.Sendrecv(sent, right, TAG, received, left, TAG)
    own.synchronize()
    assert np.array_equal(get(received), data_of(left, TAG, 0, LARGE))
    own.Free()
