"""Signal handlers that raise ordinary exceptions, as for a time limit, while a program looks for a message."""

import signal

import pytest

from pyncclx import Request
from support.arrays import Output, put
from support.labelled_messages import LARGE, data_of
from support.reference import comparing


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
