"""Receives and probes of any tag that a signal handler ends, while the peer's partitioned request waits."""

import itertools
import os
import signal
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx.messages.partitioned.board import OwnBoard, PeerBoard
from support.arrays import put, xp
from support.everywhere import assert_everywhere
from support.interruption import Interruption, meet

PACKAGE = Path(pyncclx.__file__).parent
FILES = [str(PACKAGE / each) for each in ("messages", "communicator", "requests")]
ROOM, TAG, SECONDS = 2048, 3, 5.0  # of the room: bytes
pytestmark = [
    pytest.mark.timeout(100),
    pytest.mark.one_node,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # Python goes on in destructors
]


# The call to interrupt, after those that begin it.
CALLS = {
    "Recv": lambda comm, found, partner: partial(comm.Recv, found, partner, MPI.ANY_TAG),
    "Irecv": lambda comm, found, partner: comm.Irecv(found, partner, MPI.ANY_TAG).Wait,
    "Sendrecv": lambda comm, found, partner: partial(
        comm.Sendrecv, bytearray(ROOM), MPI.PROC_NULL, 0, found, partner, MPI.ANY_TAG
    ),
    "Probe": lambda comm, found, partner: partial(comm.Probe, partner, MPI.ANY_TAG),
    "device Recv": lambda comm, found, partner: partial(comm.Recv, put(np.zeros(ROOM, "u1")), partner, MPI.ANY_TAG),
    "device Irecv": lambda comm, found, partner: comm.Irecv(put(np.zeros(ROOM, "u1")), partner, MPI.ANY_TAG).Wait,
}


def is_over(request):
    end = time.monotonic() + SECONDS
    while not request.Test():
        if time.monotonic() > end:
            return False
        os.sched_yield()
    return True


def interrupted(comm, own, name, x, partner, point):
    """Interrupt a call that receives a message; return the partitioned request, and the interruption."""
    interruption, found = Interruption(point, *FILES), bytearray(ROOM)
    call = CALLS[name](own, [found, MPI.BYTE], partner)
    interruption.end(call)
    if name == "Irecv" and call.__self__:
        call()
    del call
    meet(comm, partner)
    if own.Iprobe(partner, TAG):
        own.Recv([found, MPI.BYTE], partner, TAG)
    ends = own.Psend_init(x, 2, partner, 0)
    ends.Start()
    ends.Pready_range(0, 1)
    return ends, interruption


@pytest.mark.parametrize("name", CALLS)
def test_the_partitioned_request_goes_on(comm, name):
    own, partner, problem, ended = comm.Dup(), comm.rank ^ 1, "", True
    x = xp.zeros(8)
    for point in itertools.count(1) if partner < comm.size else ():
        is_past, place = False, ""
        if comm.rank % 2:
            ends, interruption = interrupted(comm, own, name, x, partner, point)
            is_past, place = interruption.is_past, interruption.place
        else:
            ends = own.Precv_init(x, 2, partner, 0)
            ends.Start()  # its offer comes first
            sending = MPI.Comm.Isend(own, bytearray(ROOM), partner, TAG)
            meet(comm, partner)
            sending.Wait()
        ended = is_over(ends)
        problem = "" if ended else f"point {point}, {place}"
        if meet(comm, partner, is_past or not ended) or is_past or not ended:
            break
        ends.Free()
    assert_everywhere(comm, not problem, problem)
    own.synchronize()
    if partner < comm.size:
        ends.Free()
    own.Free()


@pytest.fixture
def interrupting(monkeypatch):
    """Returns what lets Ctrl-C come in the next call of a function."""

    def interrupt(owner, name):
        original = getattr(owner, name)

        def call(*args):
            monkeypatch.setattr(owner, name, original)
            os.kill(os.getpid(), signal.SIGINT)
            return original(*args)

        monkeypatch.setattr(owner, name, call)

    return interrupt


def test_ctrl_c_while_the_sender_answers(comm, interrupting):
    """It answers once: the receiver writes the next offer in the same place."""
    own, source, dest = comm.Dup(), 0, comm.size - 1
    xs, ys, was_interrupted = [put(np.full(8, 1.0 + i)) for i in range(2)], [xp.zeros(8) for _ in range(2)], False
    sends = [own.Psend_init(x, 1, dest, TAG + i) for i, x in enumerate(xs)] if comm.rank == source else []
    receives = [own.Precv_init(y, 1, source, TAG + i) for i, y in enumerate(ys)] if comm.rank == dest else []
    if receives:
        receives[0].Start()
    MPI.Comm.Barrier(comm)
    if sends:
        interrupting(PeerBoard, "answer")
        try:
            sends[0].Start()
            while not was_interrupted:
                sends[0].Test()
        except KeyboardInterrupt:
            was_interrupted = True
    MPI.Comm.Barrier(comm)
    if receives:
        receives[0].Test()
        receives[1].Start()
    MPI.Comm.Barrier(comm)
    for i in range(2):
        if sends:
            # The monitor thread may have answered in the first start, which Ctrl-C has then ended.
            if not sends[i].is_active:
                sends[i].Start()
            sends[i].Pready(0)
            sends[i].Wait()
        if receives:
            receives[i].Wait()
    own.synchronize()
    is_right = comm.rank != dest or [y.tolist() for y in ys] == [[1.0] * 8, [2.0] * 8]
    assert_everywhere(comm, is_right and was_interrupted == bool(sends))
    own.Free()


def test_ctrl_c_in_the_start_of_a_receive(comm, interrupting):
    """The next start uses the memory that the first has offered."""
    own, source, dest = comm.Dup(), 0, comm.size - 1
    y, was_interrupted = xp.zeros(8), False
    if comm.rank == source:
        send = own.Psend_init(put(np.ones(8)), 1, dest, TAG)
        send.Start()
        send.Pready(0)
    if comm.rank == dest:
        receive = own.Precv_init(y, 1, source, TAG)
        interrupting(OwnBoard, "offer")
        try:
            receive.Start()
        except KeyboardInterrupt:
            was_interrupted = True
        receive.Start()
        receive.Wait()
    if comm.rank == source:
        send.Wait()
    own.synchronize()
    assert_everywhere(comm, comm.rank != dest or (was_interrupted and y.tolist() == [1.0] * 8))
    own.Free()
