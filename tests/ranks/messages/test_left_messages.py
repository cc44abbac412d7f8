"""Messages that calls have left: by an error, by an interrupt inside MPI's call, or for other streams."""

import gc
import time

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx.errors import SendTimeout
from pyncclx.messages import departure
from support.arrays import get, host_only, put, xp
from support.everywhere import assert_everywhere
from support.labelled_messages import assert_all_read, end_unread, map_peers

WORLD = MPI.COMM_WORLD
LONG = 100_000  # elements: a message that its receiver reads where it is
pytestmark = pytest.mark.ranks(2, 2)


@pytest.fixture
def own():
    with pyncclx.Communicator(WORLD).Dup() as made:
        yield made


@pytest.fixture
def impatient(monkeypatch):
    """A communicator whose peers are mapped and whose waits end after a second."""
    comm = pyncclx.Communicator(WORLD).Dup()
    map_peers(comm)
    monkeypatch.setenv("PYNCCLX_TIMEOUT", "1")
    made = comm.Dup()
    made.Sendrecv(xp.empty(LONG), 1 - made.rank, 0, xp.empty(LONG), 1 - made.rank, 0)
    made.synchronize()
    WORLD.Barrier()
    yield made
    end_unread(made)
    for each in (made, comm):
        each.state.abandon()


def assert_nothing_is_received(comm, y, receive):
    """Receive on rank 1 after rank 0 has timed out and overwritten its buffer: the call raises, and stores nothing."""
    WORLD.Barrier()
    raised = None
    if comm.rank == 1:
        try:
            receive(comm, y)
            comm.synchronize()
        except pyncclx.PeerTimeout as error:
            raised = error
    WORLD.Barrier()
    got = y if isinstance(y, np.ndarray) else get(y)
    assert_everywhere(WORLD, comm.rank == 0 or (raised is not None and (got == -1).all()), f"{raised}, {got[:3]}")


RECEIVES = {
    "Recv": lambda comm, y: comm.Recv(y, 0, 5),
    "Irecv": lambda comm, y: comm.Irecv(y, 0, 5).Wait(),
}


def test_a_send_that_timed_out_sends_nothing_later(impatient):
    """The program may overwrite its buffer: a receive that comes then raises, and has none of that."""
    x, y = put(np.full(LONG, 1.0)), put(np.full(LONG, -1.0))
    if impatient.rank == 0:
        with pytest.raises(SendTimeout):
            impatient.Ssend(x, 1, 5)
        x[:] = 99
    assert_nothing_is_received(impatient, y, RECEIVES["Recv"])


@pytest.mark.parametrize("receive", ["Recv", "Irecv", "host array"])
@pytest.mark.parametrize("send", ["Send", "Isend", "two Isends"])
def test_a_stream_that_timed_out_leaves_no_data(impatient, send, receive):
    """The sender's stream goes on and overwrites its buffer: a receive that comes then raises, and has none of that."""
    x, y = put(np.full(LONG, 1.0)), np.full(LONG, -1.0)
    if impatient.rank == 0:
        if send == "Send":
            impatient.Send(x, 1, 5)
        else:
            tags = (5, 6) if send.startswith("two") else (5,)
            pyncclx.Request.Waitall([impatient.Isend(x, 1, tag) for tag in tags])
        x[:] = 99
        with pytest.raises(pyncclx.PeerTimeout, match="rank 0 timed out waiting for rank 1"):
            impatient.synchronize()
    call = RECEIVES.get(receive, RECEIVES["Recv"])
    assert_nothing_is_received(impatient, y if receive == "host array" else put(y), call)


class Interrupted(BaseException):
    """What a signal handler raises."""


def interrupted(start):
    """MPI's call, after which a signal handler runs: its request is lost."""

    def call(*arguments):
        start(*arguments)
        raise Interrupted

    return call


SENDS = {
    "Send": lambda comm, x: comm.Send(x, 1, 3),
    "Ssend": lambda comm, x: comm.Ssend(x, 1, 3),
    "Isend": lambda comm, x: comm.Isend(x, 1, 3).Wait(),
    "Sendrecv": lambda comm, x: comm.Sendrecv(x, 1, 3, xp.zeros(1), MPI.PROC_NULL),
    "Isendrecv": lambda comm, x: comm.Isendrecv(x, 1, 3, xp.zeros(1), MPI.PROC_NULL).Wait(),
    "Send_init": lambda comm, x: comm.Send_init(x, 1, 3).Start(),
}


@pytest.mark.parametrize("name", SENDS)
@pytest.mark.parametrize("count", [10, LONG])
def test_an_interrupt_after_mpi_has_the_message(own, monkeypatch, name, count):
    """The receiver gets it whole, and the next one after it."""
    map_peers(own)
    received = [np.zeros(count), np.zeros(count)]
    if own.rank == 0:
        with monkeypatch.context() as patch:
            for synchronous, start in list(departure.STARTS.items()):
                patch.setitem(departure.STARTS, synchronous, interrupted(start))
            x = put(np.full(count, 5.0))
            with pytest.raises(Interrupted):
                SENDS[name](own, x)
            del x
        gc.collect()
        own.Send(put(np.full(count, 6.0)), 1, 3)
    else:
        for each in received:
            y = xp.zeros(count)
            own.Recv(y, 0, 3)
            each[:] = get(y)
    own.synchronize()
    assert_everywhere(WORLD, own.rank == 0 or ((received[0] == 5).all() and (received[1] == 6).all()), f"{received}")
    assert_all_read(own)


@host_only
def test_receives_that_leave_their_streams_use_events_again(own):
    """As those of a program that tests its requests beside collectives do."""
    spare = own.endpoint.context.spare_events
    few, y, before = xp.zeros(4), xp.zeros(LONG), len(spare)
    for turn in range(40):
        if own.rank == 0:
            request, end = own.Irecv(y, 1), time.monotonic() + 20
            own.Allreduce(MPI.IN_PLACE, few)
            while not request.Test():
                assert time.monotonic() < end
        else:
            own.Allreduce(MPI.IN_PLACE, few)
            own.Send(put(np.full(LONG, turn)), 0)
    own.synchronize()
    assert_everywhere(WORLD, len(spare) <= before + 4, f"{len(spare)} events, {before} before")
