"""Signal handlers that raise ordinary exceptions, as for a time limit, while a program looks or waits for a message."""

import contextlib
import signal
import time

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx import Request
from support.alarms import raising
from support.arrays import Output, get, put
from support.labelled_messages import LARGE, data_of, map_peers
from support.reference import comparing

SHORT, TAG = 12, 7


class Late(Exception):
    """What the handler raises."""


@pytest.fixture(params=["stream", "host"])
def own(request):
    with pyncclx.Communicator(MPI.COMM_WORLD).Dup() as made:
        map_peers(made)
        made.blocking = request.param
        yield made


RECEIVES = {
    "Recv": lambda comm, buf, status: comm.Recv(buf, 1, TAG, status),
    "Sendrecv": lambda comm, buf, status: comm.Sendrecv(np.zeros(0), MPI.PROC_NULL, 0, buf, 1, TAG, status),
    "Wait": lambda comm, buf, status: comm.Irecv(buf, 1, TAG).Wait(status),
    "Waitall": lambda comm, buf, status: Request.Waitall([comm.Irecv(buf, 1, TAG)], [status]),
}


@pytest.mark.ranks(2, 2)
@pytest.mark.parametrize("count", [SHORT, LARGE])
@pytest.mark.parametrize("place", ["device", "host"])
@pytest.mark.parametrize("receive", RECEIVES)
def test_the_exception_comes_after_the_message(own, receive, place, count):
    """As with mpi4py: status and data are there, and the next receive gets the next message."""
    sent = [data_of(1, TAG, call, count) for call in range(2)]
    if own.rank == 1:
        time.sleep(0.15)
        for each in sent:
            own.Send(put(each), 0, TAG)
    else:
        status, found = MPI.Status(), put(np.full(count, -1)) if place == "device" else bytearray(count * 8 + 1024)
        with pytest.raises(Late), raising(Late, 0.05):
            RECEIVES[receive](own, found if place == "device" else [found, MPI.BYTE], status)
        array = get(found) if place == "device" else np.frombuffer(bytes(found[: count * 8]), "i8")
        seen = status.source, status.tag, status.Get_count(MPI.INT64_T), (array == sent[0]).all()
        assert seen == (1, TAG, count, True)
        following = put(np.full(count, -1))
        own.Recv(following, 1, TAG)
        assert (get(following) == sent[1]).all()


@pytest.mark.ranks(2, 2)
@pytest.mark.parametrize("complete", ["Test", "Testall", "Testsome"])
@pytest.mark.parametrize("place", ["device", "host"])
def test_a_loop_of_tests_keeps_the_data(own, place, complete):
    """The handler raises again and again, also while the call fetches the data."""
    for call in range(10):
        count = (SHORT, LARGE)[call % 2]
        sent = data_of(1, TAG, call, count)
        if own.rank == 1:
            time.sleep(0.003)
            own.Send(put(sent), 0, TAG)
        else:
            found = put(np.full(count, -1)) if place == "device" else bytearray(count * 8 + 1024)
            request = own.Irecv(found if place == "device" else [found, MPI.BYTE], 1, TAG)
            looks = {"Test": request.Test, "Testall": lambda request=request: Request.Testall([request])}
            looks["Testsome"] = lambda request=request: Request.Testsome([request])
            pause = 0.0005
            while request:
                with contextlib.suppress(Late), raising(Late, pause):
                    while request:
                        looks[complete]()
                pause *= 1.05  # where the machine is busy, a call may need longer
            array = get(found) if place == "device" else np.frombuffer(bytes(found[: count * 8]), "i8")
            assert (array == sent).all(), f"message {call}: {array[:3]}, {array[-3:]}"


def again_and_again(look):
    while True:
        look()


@pytest.mark.parametrize("look", ["Test", "Testall"])
def test_handler_that_raises_an_ordinary_exception(comm, look):
    """A receive that has been looked for in vain is not ended by the exception of a signal's handler."""
    recv, send = Output(LARGE, "i8"), put(data_of(comm.rank, 1, 0, LARGE))

    def raises(*_):
        raise TimeoutError

    for tag in range(5):
        request = comm.Irecv(recv.array, comm.rank, tag)
        looks = {"Test": request.Test, "Testall": lambda request=request: Request.Testall([request])}
        before = signal.signal(signal.SIGVTALRM, raises)
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.01)
        try:
            with pytest.raises(TimeoutError):
                again_and_again(looks[look])
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            signal.signal(signal.SIGVTALRM, before)
        assert request
        sending = comm.Isend(send, comm.rank, tag)
        Request.Waitall([request, sending])
        with comparing() as compare:
            compare(recv, data_of(comm.rank, 1, 0, LARGE), f"message {tag}")
