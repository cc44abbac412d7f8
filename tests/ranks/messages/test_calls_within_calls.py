"""Calls that the program makes while a call is in progress: a signal handler, or a destructor of an object in a cycle.

Python runs both in the middle of the library's own code.
"""

import gc
import signal
import sys

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx.messages.memory.bounce import PLACES, SLOTS
from support.arrays import get, put, synchronize, xp
from support.labelled_messages import LARGE, data_of, map_peers
from support.reference import comparing

WORLD, TAG, ROUNDS, POINTS = MPI.COMM_WORLD, 5, 40, 150
pytestmark = pytest.mark.ranks(2, 3)


@pytest.fixture
def comms():
    """A communicator for the program's calls, and one for those within them."""
    with pyncclx.Communicator(WORLD).Dup() as outer, pyncclx.Communicator(WORLD).Dup() as inner:
        map_peers(outer)
        map_peers(inner)
        yield outer, inner


class Chain:
    """Messages on a ring: each time the last receive has ended, the next one begins, and a message is sent."""

    def __init__(self, comm):
        self.comm, self.found, self.sends = comm, [], []
        self.dest, self.source = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        self.begin()

    def begin(self):
        self.array = xp.full(LARGE, -1, "i8")
        self.receive = self.comm.Irecv(self.array, self.source, TAG)
        sent = put(data_of(self.comm.rank, TAG, len(self.sends) % 100, LARGE))
        self.sends.append(self.comm.Isend(sent, self.dest, TAG))

    def go_on(self):
        if self.receive.Test():
            self.found.append(self.array)
            self.begin()

    def end(self):
        """Receive what has been sent, and compare it."""
        total = self.comm.allgather(len(self.sends))
        while len(self.found) < total[self.source]:
            self.receive.Wait()
            self.found.append(self.array)
            self.array = xp.full(LARGE, -1, "i8")
            self.receive = self.comm.Irecv(self.array, self.source, TAG)
        self.receive.Cancel()
        self.receive.Wait()
        pyncclx.Request.Waitall(self.sends)
        synchronize()
        with comparing() as compare:
            for index, array in enumerate(self.found):
                compare(get(array), data_of(self.source, TAG, index % 100, LARGE), f"message {index}")


def exchange(comm, rounds):
    """Send long messages around a ring, and compare each."""
    dest, source = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for index in range(rounds):
        found = xp.full(LARGE, -1, "i8")
        receive, sent = comm.Irecv(found, source, TAG), put(data_of(comm.rank, TAG, index, LARGE))
        pyncclx.Request.Waitall([receive, comm.Isend(sent, dest, TAG)])
        comm.synchronize()
        assert (get(found) == data_of(source, TAG, index, LARGE)).all(), index


def test_a_signal_handler_makes_calls(comms):
    outer, inner = comms
    chain, is_within = Chain(inner), False

    def handler(*_):
        nonlocal is_within
        if not is_within:
            is_within = True
            chain.go_on()
            is_within = False

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    try:
        exchange(outer, ROUNDS)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    chain.end()


def test_destructors_make_calls(comms):
    outer, inner = comms
    chain, before = Chain(inner), gc.get_threshold()

    class Holder:
        def __init__(self):
            self.itself = self

        def __del__(self):
            chain.go_on()

    gc.set_threshold(20, 3, 3)
    try:
        for _ in range(ROUNDS):
            Holder()
            exchange(outer, 1)
    finally:
        gc.set_threshold(*before)
    gc.collect()
    chain.end()


class At:
    """A tracer that makes a call once, before one of the instructions of some functions."""

    def __init__(self, number, names, call):
        self.left, self.names, self.call = number, names, call

    def __call__(self, frame, event, argument):
        code = frame.f_code
        if event == "call" and not (code.co_name in self.names and "/pending_sends.py" in code.co_filename):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            self.left -= 1
            if self.left == 0:
                sys.settrace(None)
                self.call()
        return self if self.left > 0 else None


@pytest.mark.ranks(2, 2)
def test_a_send_at_any_point_of_the_care_for_kept_sends(comms):
    """Sends that no call waits for are kept until they have ended; a handler's send is one more of them."""
    outer, inner = comms
    peer, array, made = 1 - outer.rank, put(np.arange(LARGE)), 0
    for point in range(1, POINTS):
        if outer.rank == 0:
            for _ in range(3):
                outer.Isend(array, peer, TAG).Free()
            at = At(point, {"sweep", "has_room"}, lambda: inner.Isend(array, peer, TAG).Free())
            sys.settrace(at)
            try:
                outer.Isend(array, peer, TAG).Free()
                sent = outer.isend(array, peer, TAG + 1)
            finally:
                sys.settrace(None)
            outer.send(at.left == 0, peer, TAG)
            sent.wait()
            made += at.left == 0
        else:
            for _ in range(4):
                check_range(outer, peer)
            assert (get(outer.recv(source=peer, tag=TAG + 1)) == np.arange(LARGE)).all()
            if outer.recv(source=peer, tag=TAG):
                check_range(inner, peer)
    assert outer.rank or made > POINTS / 4


def check_range(comm, source):
    """Receive a message of the numbers from 0 on."""
    found = xp.full(LARGE, -1, "i8")
    comm.Recv(found, source, TAG)
    comm.synchronize()
    assert (get(found) == np.arange(LARGE)).all()


@pytest.mark.ranks(2, 2)
def test_old_sends_end_although_their_places_are_in_use_again(comms):
    """Also while a receive is open, for which the host has to look."""
    comm, _ = comms
    dest, source, sends = (comm.rank + 1) % 2, (comm.rank - 1) % 2, []
    late = xp.full(3, -1, "i8")
    receive = comm.Irecv(late, source, TAG + 1)
    for index in range(PLACES - SLOTS + 10):
        found = xp.full(LARGE, -1, "i8")
        incoming = comm.Irecv(found, source, TAG)
        sends.append(comm.Isend(put(data_of(comm.rank, TAG, index % 100, LARGE)), dest, TAG))
        incoming.Wait()
        comm.synchronize()
        assert (get(found) == data_of(source, TAG, index % 100, LARGE)).all(), index
    pyncclx.Request.Waitall(sends)
    comm.Send(put(np.arange(3)), dest, TAG + 1)
    receive.Wait()
    synchronize()
    assert get(late).tolist() == [0, 1, 2]
