"""What one communicator's calls wait for: their own work, never a collective of another one that peers begin later."""

import gc
from contextlib import contextmanager

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx import Request
from pyncclx.messages.context import CONTEXT
from support.arrays import Output, get_in_order, put, xp
from support.everywhere import assert_everywhere
from support.reference import NODES, comparing, labels
from support.reversed_ranks import ring
from support.window_memory import COUNT

WORLD = MPI.COMM_WORLD
TAG = 3


@pytest.fixture
def begun():
    """A block of calls while rank 0 is in a collective that the other ranks begin when they have made the calls."""
    comm = pyncclx.Communicator().Dup()
    send, whole = put(labels(comm.rank, COUNT)), Output(COUNT, "i8")
    comm.Iallreduce(send, whole.array).Wait()
    whole.poison()

    @contextmanager
    def block():
        request = comm.Iallreduce(send, whole.array) if comm.rank == 0 else None
        yield
        MPI.Comm.Barrier(comm)
        (request or comm.Iallreduce(send, whole.array)).Wait()
        with comparing() as compare:
            compare(whole, sum(labels(rank, COUNT) for rank in range(comm.size)), "the collective")

    yield block
    comm.Free()


def collectives(comm):
    recv = xp.zeros(COUNT * comm.size, "i8")
    comm.Allgather(put(labels(comm.rank, COUNT)), recv)
    expected = np.concatenate([labels(rank, COUNT) for rank in range(comm.size)])
    assert_everywhere(comm, (get_in_order(recv) == expected).all())


def persistent(comm):
    """Of a track, which has a lease of its own."""
    recv = xp.zeros(COUNT, "i8")
    request = comm.Allreduce_init(put(labels(comm.rank, COUNT)), recv)
    request.Start()
    request.Wait()
    assert_everywhere(comm, (get_in_order(recv) == sum(labels(rank, COUNT) for rank in range(comm.size))).all())


def messages(comm, send=None, recv=None):
    right, left = ring(comm)
    send, recv = xp.zeros(COUNT, "i8") if send is None else send, xp.zeros(COUNT, "i8") if recv is None else recv
    send[...] = put(labels(comm.rank, COUNT))
    comm.Sendrecv(send, right, TAG, recv, left, TAG)
    Request.Waitall([comm.Isend(send, right, TAG), comm.Irecv(recv, left, TAG)])
    assert_everywhere(comm, (get_in_order(recv) == labels(left, COUNT)).all())


def windows(comm):
    """Messages out of them, and copies into them."""
    memory, recv, (right, left) = comm.Alloc(COUNT, "i8"), comm.Alloc(COUNT, "i8"), ring(comm)
    messages(comm, memory, recv)
    win = pyncclx.Win.Create(memory, 8, comm=comm)
    win.Fence()
    win.Put(recv, right)
    win.Fence()
    win.Put_signal(recv, right)
    win.Wait_signal()
    assert_everywhere(comm, (get_in_order(memory) == labels((left - 1) % comm.size, COUNT)).all())
    win.Free()


def shuffle(comm):
    with comm.Create_token_shuffle(comm.size, 16, 16, "f4", k=1, max_tokens=4) as shuffle:
        tokens, ids = put(np.ones((4, 16), "f4")), put(np.full((4, 1), comm.rank))
        rows, handle = shuffle.dispatch(tokens, ids, put(np.ones((4, 1), "f4")))
        out = shuffle.combine(rows.data, handle)
        assert_everywhere(comm, (get_in_order(out) == 1).all())


def partitions(comm):
    requests = both_ends(comm)
    for _ in range(2):
        pyncclx.Prequest.Startall(requests)
        requests[0].Pready_range(0, 3)
        Request.Waitall(requests)


def both_ends(comm):
    right, left = ring(comm)
    send, recv = put(labels(comm.rank, COUNT)), xp.zeros(COUNT, "i8")
    return comm.Psend_init([send, COUNT // 4, MPI.INT64_T], 4, right, TAG), comm.Precv_init(
        [recv, COUNT // 4, MPI.INT64_T], 4, left, TAG
    )


def free_by_handle(comm):
    MPI.Comm.f2py(comm.py2f()).Free()


USES = [collectives, persistent, messages, windows, shuffle, partitions]
if NODES:
    USES = [collectives, persistent, messages]


@pytest.mark.parametrize("free", [pyncclx.Communicator.Free, free_by_handle])
@pytest.mark.parametrize("use", USES)
def test_free(begun, use, free):
    comm = pyncclx.Communicator().Dup()
    use(comm)
    gc.collect()
    with begun():
        free(comm)


@pytest.mark.one_node
def test_free_of_a_window_and_a_shuffle(begun):
    comm = pyncclx.Communicator().Dup()
    memory = comm.Alloc(COUNT, "i8")
    win = pyncclx.Win.Create(memory, 8, comm=comm)
    win.Fence()
    win.Put(put(labels(comm.rank, COUNT)), ring(comm)[0])
    win.Fence()
    tokens = comm.Create_token_shuffle(comm.size, 16, 16, "f4", k=1, max_tokens=4)
    ids = put(np.full((4, 1), comm.rank))
    tokens.dispatch(put(np.ones((4, 16), "f4")), ids, put(np.ones((4, 1), "f4")))
    with begun():
        win.Free()
        tokens.Free()
    assert_everywhere(comm, (get_in_order(memory) == labels(ring(comm)[1], COUNT)).all())
    comm.Free()


@pytest.mark.one_node
def test_register(begun):
    comm = pyncclx.Communicator().Dup()
    device = CONTEXT.get().receives.device
    array = device.array(device.allocate_exported(8 * COUNT).memory, (COUNT,), "i8") if xp is np else xp.zeros(COUNT)
    registration = comm.Register(array)
    with begun():
        registration.Free()
    comm.Free()


def test_a_dropped_communicator(begun):
    """The next one closes it, or takes over what it has."""
    comm, halves = pyncclx.Communicator().Dup(), pyncclx.Communicator()
    collectives(comm)
    messages(comm)
    comm = None
    gc.collect()
    with begun():
        half = halves.Split(halves.rank * 2 // halves.size, 0)
        collectives(half)
        messages(half)
        collectives(halves.Dup())


def test_the_first_message_of_a_new_communicator(begun):
    """After others that are gone: it gets what they had."""
    for _ in range(3):
        with pyncclx.Communicator().Dup() as comm:
            messages(comm)
        comm = None
    gc.collect()
    with begun(), pyncclx.Communicator().Dup() as comm:
        messages(comm)


@pytest.mark.one_node
@pytest.mark.ranks(2)
def test_partitions_that_wait_for_their_receiver(begun):
    """Beside the end of another communicator, and the first message of a third one."""
    comm, old = pyncclx.Communicator().Dup(), pyncclx.Communicator().Dup()
    send, receive = both_ends(comm)
    for _ in range(2):
        send.Start()
        send.Pready_range(0, 3)
        if comm.rank:
            receive.Start()
        messages(old)
        old.Free()
        old = pyncclx.Communicator().Dup()
        collectives(old)
        if not comm.rank:
            receive.Start()
        Request.Waitall([send, receive])
    old.Free()
    comm.Free()


@pytest.mark.one_node
@pytest.mark.ranks(2)
@pytest.mark.parametrize("blocking", ["stream", "host"])
def test_messages_beside_partitions_that_wait(blocking):
    """Of the same communicator; in the second round both ends have met."""
    comm = pyncclx.Communicator().Dup()
    comm.blocking = blocking
    send, receive = both_ends(comm)
    for _ in range(3):
        send.Start()
        send.Pready_range(0, 3)
        messages(comm)
        comm.send(put(labels(comm.rank, COUNT)), ring(comm)[0])
        assert_everywhere(comm, (get_in_order(comm.recv(source=ring(comm)[1])) == labels(ring(comm)[1], COUNT)).all())
        receive.Start()
        Request.Waitall([send, receive])
    comm.Free()


def test_nothing_was_launched(begun):
    comm = pyncclx.Communicator().Dup()
    comm.Alloc(COUNT) if not NODES else None
    with begun():
        comm.synchronize()
        comm.Free()
