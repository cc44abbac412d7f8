"""Objects whose receiver is elsewhere: what a rank sends does not wait until the other one has unpickled it."""

import threading
import time

import pytest
from mpi4py import MPI

from pyncclx.messages.send import Outgoing
from pyncclx.objects import messages, packed_arrays
from support.arrays import own_gpu, put
from support.everywhere import assert_everywhere
from support.labelled_messages import map_peers
from support.objects import difference
from support.reference import labels
from support.reversed_ranks import reversed_ranks, ring

LONG = 20_001  # elements of 8 bytes: more than fit in a slot

comm = pytest.fixture(reversed_ranks, scope="module")
ring = pytest.fixture(ring)


@pytest.fixture(autouse=True)
def by_kernels(comm, monkeypatch):
    """Arrays of any length go by kernels; the first messages, which bring their data, are over."""
    monkeypatch.setattr(packed_arrays, "SHORT_NBYTES", -1)
    map_peers(comm)


def unread(comm):
    """How many objects of this process the library keeps, for their receivers have not read them."""
    pending_sends = comm.endpoint.context.receives.pending_sends
    pending_sends.sweep(len(pending_sends.kept))
    return sum(type(each) is Outgoing for each in pending_sends.kept)


def until_all_are_read(comm):
    """Wait some seconds at most."""
    end = time.monotonic() + 5
    while unread(comm) and time.monotonic() < end:
        time.sleep(0.001)
    return not unread(comm)


def values(comm, call, tag=0):
    return {"x": put(labels(comm.rank, LONG, 10 * call + tag)), "rank": comm.rank}


def right(received, source, call, tag=0):
    return received["rank"] == source and not difference(received["x"], labels(source, LONG, 10 * call + tag))


ELSEWHERE = {  # what all ranks do while the object is on its way
    "nothing": lambda comm, obj: None,
    "Barrier": lambda comm, obj: MPI.Comm.Barrier(comm),
    "device barrier": lambda comm, obj: comm.Barrier(device=True),
    "bcast": lambda comm, obj: comm.bcast(obj),
    "gather": lambda comm, obj: comm.gather(obj),
    "scatter": lambda comm, obj: comm.scatter([obj] * comm.size),
    "allgather": lambda comm, obj: comm.allgather(obj),
    "alltoall": lambda comm, obj: comm.alltoall([obj] * comm.size),
    "reduce": lambda comm, obj: comm.reduce(obj["x"], root=comm.size - 1),
    "allreduce": lambda comm, obj: comm.allreduce(obj["x"]),
    "sendrecv": lambda comm, obj: comm.sendrecv(obj, (comm.rank + 1) % comm.size, 8, None, MPI.ANY_SOURCE, 8),
}


@pytest.mark.timeout(40)
@pytest.mark.parametrize("blocking", ["stream", "host"])
@pytest.mark.parametrize("send", ["send", "ssend"])
@pytest.mark.parametrize("elsewhere", ELSEWHERE)
def test_irecv_before_send(comm, ring, monkeypatch, elsewhere, send, blocking):
    """Every rank posts a receive, sends, is somewhere else, and only then unpickles what it has received."""
    monkeypatch.setattr(comm, "blocking", blocking)
    above, below = ring
    for call in range(3):
        request = comm.irecv(bytearray(1 << 20), below, 5)
        getattr(comm, send)(values(comm, call), above, 5)
        ELSEWHERE[elsewhere](comm, values(comm, call, 1))
        assert_everywhere(comm, right(request.wait(), below, call), f"call {call}")
    assert_everywhere(comm, until_all_are_read(comm))


@pytest.mark.timeout(40)
def test_short_arrays_behind_a_synchronous_send(comm, ring, monkeypatch):
    """The copy to the host follows a kernel that waits for the receiver, whose other thread is to fetch the message."""
    monkeypatch.undo()
    above, below = ring
    for call in range(3):
        received = put(labels(0, LONG, -1))
        request = comm.Irecv(received, below, 6)
        comm.Ssend(put(labels(comm.rank, LONG, call)), above, 6)
        objects = comm.allgather((comm.rank, put(labels(comm.rank, 5, call))))
        request.Wait()
        assert_everywhere(comm, not difference(received, labels(below, LONG, call)), f"message {call}")
        fits = [rank == each and not difference(x, labels(each, 5, call)) for each, (rank, x) in enumerate(objects)]
        assert_everywhere(comm, all(fits), f"objects {call}")


@pytest.mark.parametrize("receive", ["recv", "irecv", "mprobe", "waitall"])
@pytest.mark.parametrize("send", ["send", "isend", "ssend"])
def test_arrays_of_a_window(comm, ring, send, receive):
    """They are copied as other arrays are, so any way to receive will do, and the sender may change them at once."""
    above, below = ring
    window = comm.Alloc(LONG, "i8")
    for call in range(2):
        window[...] = put(labels(comm.rank, LONG, call))
        request = comm.irecv(bytearray(1 << 20), below, 5) if receive in ("irecv", "waitall") else None
        sent = comm.isend({"x": window}, above, 5) if request is None else getattr(comm, send)({"x": window}, above, 5)
        window[...] = -1
        MPI.Comm.Barrier(comm)
        if request is not None:
            received = request.wait() if receive == "irecv" else MPI.Request.waitall([request])[0]
        else:
            received = comm.recv(source=below, tag=5) if receive == "recv" else comm.mprobe(below, 5).recv()
        if sent is not None:
            sent.wait()
        assert_everywhere(comm, not difference(received["x"], labels(below, LONG, call)), f"call {call}")


def test_one_object_that_comes_late_keeps_no_other(comm, ring):
    """The copies of those behind it are released when they have been read."""
    above, below = ring
    sent = [comm.isend(values(comm, tag), above, tag) for tag in range(6)]
    received = [comm.recv(source=below, tag=tag) for tag in range(5, 0, -1)]
    MPI.Comm.Barrier(comm)
    ok = all(right(each, below, call) for each, call in zip(received, range(5, 0, -1), strict=True))
    assert_everywhere(comm, ok and unread(comm) == 1, f"{unread(comm)} are kept")
    assert_everywhere(comm, right(comm.recv(source=below, tag=0), below, 0))
    for request in sent:
        request.wait()
    assert_everywhere(comm, until_all_are_read(comm))


@pytest.mark.skipif(MPI.Query_thread() < MPI.THREAD_MULTIPLE, reason="only one thread may call MPI")
def test_two_threads_send(comm, ring, monkeypatch):
    """On communicators of their own; no message is forgotten before its receiver has read it."""
    above, below = ring
    bounce, forgotten = comm.endpoint.context.bounce, []

    def check(self):
        if self._offered is not None and bounce.done_words(self._offered, 1)[0] != self.clock:
            forgotten.append(self)

    monkeypatch.setattr(Outgoing, "__del__", check, raising=False)
    comms, problems, device = [comm.Dup() for _ in range(2)], [], own_gpu()
    for own in comms:
        map_peers(own)

    def work(own):
        try:
            with device:
                for call in range(40):
                    request = own.isend(values(own, call), above, 1)
                    if not right(own.recv(source=below, tag=1), below, call):
                        problems.append(call)
                    request.wait()
        except Exception as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=[own]) for own in comms]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert_everywhere(comm, not problems and not forgotten, f"{problems} {forgotten}")
    assert_everywhere(comm, until_all_are_read(comm))
    for own in comms:
        own.Free()


@pytest.mark.parametrize("number", [1, 3])
def test_without_memory_for_a_copy_mpi_transfers_it(comm, ring, monkeypatch, number):
    """One array or some; the object comes as any other."""
    above, below = ring

    def refuse(*_):
        raise MemoryError("none left")

    with monkeypatch.context() as patched:
        patched.setattr(packed_arrays, "temporary", refuse)
        request = comm.isend([put(labels(comm.rank, LONG, call)) for call in range(number)], above)
    received = comm.recv(source=below)
    request.wait()
    expected = [labels(below, LONG, call) for call in range(number)]
    assert_everywhere(comm, not difference(received, expected) and not unread(comm))


def test_copies_are_bounded(comm, ring, monkeypatch):
    """What is sent beyond the bound goes through MPI, until some of the copies have been read."""
    monkeypatch.setattr(messages, "MOST_KEPT_NBYTES", 2 * 8 * LONG)
    above, below = ring
    for _ in range(2):
        sent = [comm.isend(values(comm, call), above, call) for call in range(5)]
        assert_everywhere(comm, unread(comm) == 2, f"{unread(comm)} are kept")
        MPI.Comm.Barrier(comm)
        received = [comm.recv(source=below, tag=call) for call in reversed(range(5))]
        for request in sent:
            request.wait()
        ok = all(right(each, below, 4 - index) for index, each in enumerate(received))
        assert_everywhere(comm, ok and until_all_are_read(comm))
