"""Messages between two ranks: matched as MPI matches, whole, in order, whatever way their data travels."""


import numpy as np
import pytest
from mpi4py import MPI

from arrays import Output, put, xp
from pyncclx.messages import postbox
from reference import comparing

WORLD = MPI.COMM_WORLD
EAGER = postbox.SLOT_NBYTES // 4  # elements of the longest message that is copied
SIZES = [0, 1, 3, 4, 5, 1000, EAGER, EAGER + 1, 5 * EAGER + 3]
LARGE = 3 * EAGER + 1


def told(source, tag, index, count):
    """What a message holds: every element says who sent it, with which tag, as which message, and where it is."""
    label = ((source + 1) << 48) + ((tag % 256) << 40) + ((index % 256) << 32)
    return np.arange(count, dtype="i8") + label


def sender_of(values):
    """(source, tag, index) of what has arrived."""
    first = int(values[0])
    return (first >> 48) - 1, first >> 40 & 255, first >> 32 & 255


def acquaint(comm):
    """After this every rank's data stays on the device: all know that all can read it."""
    for distance in range(1, comm.size):
        for _ in range(2):
            dest, source = (comm.rank + distance) % comm.size, (comm.rank - distance) % comm.size
            comm.Sendrecv(put(np.zeros(1, "i8")), dest, 0, xp.empty(1, "i8"), source, 0)
    assert all(comm.endpoint.postbox.readers.has(comm.endpoint.number_of(rank)) for rank in range(comm.size))


# ---- pairs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", SIZES)
def test_ring(comm, count):
    """Everybody sends to the right, and again, from and to unaligned addresses; the status says from whom."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    with comparing() as compare:
        for index, (here, there) in enumerate([(0, 0), (0, 0), (1, 0), (0, 3), (1, 1)]):
            values = told(comm.rank, 5, index, count)
            recv, status = Output(count, "i8", there), MPI.Status()
            comm.Sendrecv(put(values, here), right, 5, recv.array, left, 5, status)
            compare(recv, told(left, 5, index, count), f"call {index}")
            assert (status.source, status.tag, status.Get_count(MPI.INT64_T)) == (left, 5, count)
            assert status.Get_error() == MPI.SUCCESS


@pytest.mark.ranks(2)
@pytest.mark.parametrize("offset", [1, 2, 3, 4, 5, 8, 15])
def test_bytes_of_any_alignment(comm, offset):
    acquaint(comm)
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    with comparing() as compare:
        for count in (1, 15, 16, 17, 999, postbox.SLOT_NBYTES + offset):
            values = (np.arange(count) % 251 + comm.rank).astype("u1")
            recv = Output(count, "u1", (offset * 3) % 16)
            comm.Sendrecv(put(values, offset), right, 0, recv.array, left, 0)
            compare(recv, (np.arange(count) % 251 + left).astype("u1"), f"{count} bytes")


@pytest.mark.ranks(2)
@pytest.mark.parametrize("name", ["Send", "Ssend", "Isend", "Issend"])
@pytest.mark.parametrize("count", [0, 10, EAGER, LARGE])
def test_every_send(comm, name, count):
    """Rank 0 sends to each; afterwards it writes to the buffer, which is its own again."""
    acquaint(comm)
    if comm.rank == 0:
        for dest in range(1, comm.size):
            for index in range(3):
                send = put(told(0, 7, index, count))
                request = getattr(comm, name)(send, dest, 7)
                if request is not None:
                    request.Wait()
                send[...] = -1
    else:
        with comparing() as compare:
            for index in range(3):
                recv = Output(count, "i8")
                comm.Recv(recv.array, 0, 7)
                compare(recv, told(0, 7, index, count), f"message {index}")


@pytest.mark.ranks(2)
def test_eager_sends_head_to_head(comm):
    """Short sends need no receiver: both send first, receive then."""
    acquaint(comm)
    peer = comm.rank ^ 1
    if peer < comm.size:
        with comparing() as compare:
            for index in range(5):
                comm.Send(put(told(comm.rank, 1, index, EAGER)), peer, 1)
            for index in range(5):
                recv = Output(EAGER, "i8" if EAGER * 8 <= postbox.SLOT_NBYTES else "i4")
                del recv
                got = xp.zeros(EAGER, "i8")
                comm.Recv(got, peer, 1)
                compare(got, told(peer, 1, index, EAGER), f"message {index}")


def test_self(comm):
    """A rank is its own peer."""
    with comparing() as compare:
        for count in SIZES:
            recv, send = Output(count, "i8"), put(told(comm.rank, 2, 0, count))
            request = comm.Isend(send, comm.rank, 2)
            comm.Recv(recv.array, comm.rank, 2)
            request.Wait()
            compare(recv, told(comm.rank, 2, 0, count), f"{count} elements to myself")
