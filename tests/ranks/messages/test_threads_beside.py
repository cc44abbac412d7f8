"""Threads of each rank that send and receive at the same time, each on a communicator and a stream of its own."""

import contextlib
import threading
import time

import numpy as np
import pytest
from mpi4py import MPI

from pyncclx import Prequest, Request
from pyncclx.failures.detector import DETECTOR
from pyncclx.messages.context import CONTEXT
from support.arrays import HOST, get, own_gpu, own_stream, put, synchronize, xp
from support.labelled_messages import data_of
from support.reference import NODES
from support.reversed_ranks import ring

SHORT, LONG = 100, 6 << 10  # elements: some in a slot, and more than a slot has
POISON = -1
TAGS = (0, 1)  # two messages each way in a round
ROUNDS = 40

pytestmark = pytest.mark.skipif(MPI.Query_thread() < MPI.THREAD_MULTIPLE, reason="only one thread may call MPI")


def persistent(comm, sends, receives):
    """Return what sends and receives all once, again and again."""
    right, left = ring(comm)
    requests = [comm.Recv_init(receives[tag], left, tag) for tag in TAGS]
    requests += [comm.Send_init(sends[tag], right, tag) for tag in TAGS]

    def run():
        Prequest.Startall(requests)
        Request.Waitall(requests)

    return run


def nonblocking(comm, sends, receives):
    right, left = ring(comm)

    def run():
        requests = [comm.Irecv(receives[tag], left, tag) for tag in TAGS]
        Request.Waitall(requests + [comm.Isend(sends[tag], right, tag) for tag in TAGS])

    return run


def asked(comm, sends, receives):
    right, left = ring(comm)

    def run():
        requests = [comm.Isend(sends[tag], right, tag) for tag in TAGS]
        requests += [comm.Irecv(receives[tag], left, tag) for tag in TAGS]
        while not Request.Testall(requests):
            pass

    return run


def blocking(comm, sends, receives):
    right, left = ring(comm)

    def run():
        for tag in TAGS:
            comm.Sendrecv(sends[tag], right, tag, receives[tag], left, tag)

    return run


def beside_a_collective(comm, sends, receives):
    right, left = ring(comm)
    ones, total = put(np.ones(SHORT, "i8")), xp.empty(SHORT, "i8")

    def run():
        request = comm.Irecv(receives[0], left, 0)
        sending = comm.Isend(sends[0], right, 0)
        comm.Allreduce(ones, total)
        comm.Sendrecv(sends[1], right, 1, receives[1], left, 1)
        Request.Waitall([request, sending])

    return run


def rounds(comm, thread, count, run, sends, receives):
    """Send data of this rank, thread and round to the right; return what came from the left and is something else."""
    _, left = ring(comm)
    for index in range(ROUNDS):
        for tag in TAGS:
            sends[tag][...] = put(data_of(comm.rank, 16 * thread + tag, index, count))
            receives[tag][...] = POISON
        run()
        for tag in TAGS:
            found = get(receives[tag])
            if not np.array_equal(found, data_of(left, 16 * thread + tag, index, count)):
                return f"thread {thread}, round {index}, tag {tag}: {found}"
    return None


@pytest.mark.parametrize("count", [SHORT, LONG])
@pytest.mark.parametrize("make", [persistent, nonblocking, asked, blocking, beside_a_collective])
def test_threads_with_communicators_of_their_own(comm, make, count):
    """Where a thread of a rank waits for a peer, another one goes on, for which another one of the peer waits."""
    owns, results = [comm.Dup() for _ in range(2)], {}
    arrays = [[[xp.full(count, POISON, "i8") for _ in TAGS] for _ in range(2)] for _ in owns]
    device = own_gpu()

    def work(thread):
        try:
            with device, contextlib.nullcontext() if HOST else xp.cuda.Stream(non_blocking=True):
                run = make(owns[thread], *arrays[thread])
                results[thread] = rounds(owns[thread], thread, count, run, *arrays[thread])
        except BaseException as error:  # which would end this thread alone
            results[thread] = repr(error)

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(len(owns))]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    MPI.Comm.Barrier(comm)
    for own in owns:
        own.Free()
    assert results == {0: None, 1: None}


def wait_for_kernel():
    """Wait until another thread of this process waits for its receiver in a kernel."""
    end = time.monotonic() + 5
    while not (waits := CONTEXT.get().waits) and time.monotonic() < end:
        time.sleep(0.001)
    assert waits


@pytest.mark.ranks(2)
@pytest.mark.skipif(bool(NODES), reason="kernels send inside a node")
def test_memory_of_peers_is_not_closed_while_another_thread_waits(comm, monkeypatch):
    """It would wait for the device, and so for the receiver, which first waits for what this thread sends next."""
    owns, closed, x = [comm.Dup() for _ in range(2)], [], put(np.arange(LONG))
    right, left = ring(comm)
    for own in owns * 3:  # the first messages tell ranks of each other's memory
        own.Sendrecv(x, right, 0, xp.empty_like(x), left, 0)
    if comm.rank == 0 and comm.size > 1:
        context = CONTEXT.get()
        context.waits.clear()
        # A graph of another test might run.
        monkeypatch.setattr(DETECTOR.get(), "waits_in_collectives", lambda: False)
        monkeypatch.setattr(context.opened, "make_room", lambda: closed.append(len(closed)))

        def send():
            with own_gpu(), own_stream():
                owns[0].Send(x, 1)

        synchronize()
        thread = threading.Thread(target=send)
        thread.start()
        wait_for_kernel()
        context.make_room()
        owns[1].Send(x, 1)
        thread.join()
        before, _ = len(closed), owns[0].synchronize()
        context.make_room()
        after = len(closed)
    elif comm.rank == 1:
        for own in reversed(owns):
            own.Recv(xp.empty_like(x), 0)
    MPI.Comm.Barrier(comm)
    for own in owns:
        own.Free()
    if comm.rank == 0 and comm.size > 1:
        assert (before, after) == (0, 1)
