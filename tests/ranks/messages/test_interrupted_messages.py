"""Messages whose calls end by what a signal handler raises: as Ctrl-C does, wherever the call waits."""

import time
from contextlib import contextmanager

import numpy as np
import pytest
from mpi4py import MPI

from support.alarms import raising
from support.arrays import get, put
from support.labelled_messages import map_peers, map_peers_if
from support.reversed_ranks import ring

LONG = 300_000  # bytes: a message whose send waits for its receiver
SOON_S, LATER_S = 0.2, 0.6


class Interrupted(BaseException):
    """What the signal handler raises."""


@contextmanager
def interrupted():
    """Interrupt the block soon."""
    with pytest.raises(Interrupted), raising(Interrupted, SOON_S):
        yield


def of_value(value):
    return put(np.full(LONG, value, "u1"))


@pytest.mark.parametrize("name", ["Send", "Ssend", "Sendrecv"])
@pytest.mark.parametrize("is_open", [False, True], ids=["alone", "beside an open receive"])
def test_what_an_interrupted_send_has_sent_arrives(comm, name, is_open, monkeypatch):
    map_peers_if(comm, False, monkeypatch)  # the call waits in MPI, which moves the data
    right, left = ring(comm)
    x, y, other = of_value(comm.rank + 1), of_value(0), of_value(0)
    beside = [comm.Irecv(other, left, 9)] if is_open else []
    with interrupted():
        if name == "Sendrecv":
            comm.Sendrecv(x, right, 7, y, MPI.PROC_NULL)
        else:
            getattr(comm, name)(x, right, 7)
    del x
    MPI.Comm.Barrier(comm)
    comm.Recv(y, left, 7)
    for request in [*beside, *([comm.Isend(of_value(9), right, 9)] if is_open else [])]:
        request.Wait()
    comm.synchronize()
    assert set(get(y)) == {left + 1}
    assert not is_open or set(get(other)) == {9}


def test_an_interrupted_receive_reads_the_message_that_it_has_taken(comm):
    map_peers(comm)
    partner = comm.rank ^ 1
    for value in (1, 2) if partner < comm.size else ():  # the first is interrupted in MPI, as the message comes
        x, y = of_value(value), of_value(0)
        if comm.rank % 2:
            time.sleep(LATER_S)
            comm.Send(x, partner, value)
        elif value == 1:
            with interrupted():
                comm.Recv(y, partner, value)
        else:
            comm.Recv(y, partner, value)
            assert set(get(y)) == {value}
    comm.synchronize()
