"""Which requests of MPI's own the monitor lets MPI go on with, and that it rests when they are over."""

import pytest
from mpi4py import MPI

import pyncclx
from pyncclx.messages.progress import Kept, pending_sends
from pyncclx.messages.progress.pending_sends import MOST_NEW, PendingSends, begin_to_follow


class MessageMonitor:
    """Counts how often it is woken."""

    asleep, woken = True, 0

    def wake(self):
        self.woken += 1


@pytest.fixture
def comm():
    with pyncclx.Communicator(MPI.COMM_SELF).Dup() as comm:
        yield comm


@pytest.fixture
def monitor():
    return MessageMonitor()


@pytest.fixture
def own(monitor, monkeypatch):
    """In the place of the process's, which has what other tests have begun."""
    own = PendingSends(monitor)
    monkeypatch.setattr(pending_sends, "OF_PROCESS", [own])
    return own


def receives_of_memory(comm, room):
    return [comm.Irecv([room, MPI.BYTE], 0, tag=number) for number in range(3)]


def receives_of_objects(comm, room):
    return [comm.irecv(room, 0, tag=number) for number in range(3)]


@pytest.mark.parametrize("end", ["complete", "drop", "complete copies"])
@pytest.mark.parametrize("begin", [receives_of_memory, receives_of_objects])
def test_requests_of_the_program(comm, own, monitor, begin, end):
    """They are followed until they are null or gone. A copy makes another one null."""
    requests = begin(comm, bytearray(1 << 10))
    assert own
    assert monitor.woken >= 1
    assert own.begun == 3
    others = [] if end == "complete" else [MPI.Request(request) for request in requests]
    for number in range(3):
        comm.Send([b"data", MPI.BYTE], 0, number) if begin is receives_of_memory else comm.send(number, 0, number)
    if end == "complete":
        assert MPI.Request.Waitall(requests)
    else:
        assert MPI.Request.Waitall(others)
    assert bool(own) == (end != "complete")
    requests.clear()
    assert not own


def receives_nothing(comm):
    pass


def receives_bytes(comm):
    comm.Recv([bytearray(4), MPI.BYTE])


KINDS = {
    "isend": (lambda comm: comm.isend(3, 0), lambda comm: comm.recv()),
    "issend": (lambda comm: comm.issend(3, 0), lambda comm: comm.recv()),
    "Isend": (lambda comm: comm.Isend([b"data", MPI.BYTE], 0), receives_bytes),
    "Ibarrier": (lambda comm: comm.Ibarrier(), receives_nothing),
    "Ibcast": (lambda comm: comm.Ibcast([bytearray(4), MPI.BYTE]), receives_nothing),
    "Iallreduce": (lambda comm: comm.Iallreduce([bytes(4), MPI.INT], [bytearray(4), MPI.INT]), receives_nothing),
}


@pytest.mark.parametrize(("begin", "receive"), KINDS.values(), ids=KINDS)
def test_all_kinds(comm, own, begin, receive):
    request = begin(comm)
    assert own
    receive(comm)
    request.Wait()
    assert not own


def test_many_requests_one_after_the_other(comm, own):
    """Most of what is over is forgotten, though the monitor does not look."""
    pending, room = comm.irecv(None, 0, 1), bytearray(4)
    for _ in range(5 * MOST_NEW):
        requests = comm.Irecv([room, MPI.BYTE], 0), comm.Isend([b"data", MPI.BYTE], 0)
        MPI.Request.Waitall(requests)
    assert len(own.new) + len(own._followed) < 2 * MOST_NEW
    assert own
    comm.send("the end", 0, 1)
    assert pending.wait() == "the end"
    assert not own
    assert own.begun == 10 * MOST_NEW + 1


@pytest.fixture
def early(monkeypatch):
    """No kernel of this process may wait yet."""
    monkeypatch.setattr(pending_sends, "OF_PROCESS", [])
    monkeypatch.setattr(pending_sends, "UNFOLLOWED", [])


def test_what_has_begun_before_is_followed_later(comm, early, monitor):
    """From when a kernel may wait, which may be for a receive that was begun before."""
    requests = [comm.Irecv([bytearray(1 << 11), MPI.BYTE], 0, tag=number) for number in range(2)]
    comm.Send([b"data", MPI.BYTE], 0, 0)
    requests[0].Wait()
    own = PendingSends(monitor)
    begin_to_follow(own)
    assert monitor.woken >= 1
    assert own
    comm.Send([b"data", MPI.BYTE], 0, 1)
    requests[1].Wait()
    assert not own
    assert own.begun == 1


def test_few_are_kept_before(comm, early):
    for number in range(10 * MOST_NEW):
        request = comm.Irecv([bytearray(1 << 11), MPI.BYTE], 0, tag=number)
        comm.Send([b"data", MPI.BYTE], 0, number)
        request.Wait()
        assert len(pending_sends.UNFOLLOWED) <= MOST_NEW


def test_nothing_is_followed_before_a_kernel_may_wait(comm, early):
    request = comm.irecv(None, 0)
    comm.send(3, 0)
    assert request.wait() == 3


class Keeping:
    """A kept message whose end keeps another one, as the fetch of a host array keeps its scratch memory."""

    nbytes = 0

    def __init__(self, own, other):
        self.own, self.other = own, other

    def has_ended(self):
        if self.other is not None:
            other, self.other = self.other, None
            self.own.keep_message(other)
        return True


class Open:
    """A kept message that does not end."""

    nbytes = 1

    def has_ended(self):
        return False


def test_a_message_whose_end_keeps_another(own):
    """Of three, the two that have not ended stay."""
    first, other = Open(), Open()
    own.keep_message(first)
    own.keep_message(Keeping(own, other))
    for _ in range(3):
        own.sweep()
    assert {first, other} == set(own.kept)


class Dropped:
    """A message that is abandoned."""

    def __init__(self, pending_sends, left):
        self.pending_sends, self.left = pending_sends, left

    def abandon(self):
        self.left.append(self)
        self.pending_sends.keep_message(Kept(lambda: False, None))


def test_thousands_of_dropped_requests(monitor):
    """To keep an abandoned message must not abandon the next one: thousands would recurse too deep."""
    own, left = PendingSends(monitor), []
    own.dropped.extend(Dropped(own, left) for _ in range(3000))
    own.take_dropped()
    assert len(left) == 3000
    assert not own.dropped
