"""MPI goes on with its own requests while their rank waits in a kernel: of objects, host memory, Idup and Ibarrier.

Some ranks begin something and go into a sum, whose kernel waits for the others; these come there when they have
completed their part, for which MPI needs the former. Without its progress the sum ends after PYNCCLX_TIMEOUT.
"""

import time

import pytest
from mpi4py import MPI

from pyncclx import Request
from support.arrays import get, xp

NBYTES = 1 << 22  # more than any MPI sends before its receiver asks for it
MANY = 2000  # messages, more than any MPI takes before their receiver looks

pytestmark = [
    pytest.mark.ranks(2),
    pytest.mark.skipif(MPI.Query_thread() < MPI.THREAD_MULTIPLE, reason="only one thread may call MPI"),
]


@pytest.fixture(autouse=True)
def used(comm):
    """The kernel is there, and the device is used."""
    allreduce(comm)


def allreduce(comm):
    recv = xp.zeros(3, "f4")
    comm.Allreduce(xp.ones(3, "f4"), recv)
    comm.synchronize()  # raises if the kernel has given up
    assert get(recv).tolist() == [comm.size] * 3


def partner(comm):
    """The neighbour of an even rank; None of a last one without another."""
    other = comm.rank ^ 1
    return other if other < comm.size else None


def data_of(rank):
    return bytes([rank + 1]) * NBYTES


# Each begins something on even ranks and returns what completes it there, or does the odd ranks' part.


def objects_to(comm, other):
    if comm.rank % 2:
        for number in range(MANY):
            assert comm.recv(source=other) == (other, number)
        return None
    requests = [comm.isend((comm.rank, number), other) for number in range(MANY)]
    return lambda: Request.waitall(requests)


def object_from(comm, other):
    if comm.rank % 2:
        comm.send(data_of(comm.rank), other)
        return None
    request = comm.irecv(bytearray(2 * NBYTES), other)
    return lambda: request.wait() == data_of(other) or pytest.fail("wrong data")


def memory_from(comm, other):
    if comm.rank % 2:
        comm.Send([bytearray(data_of(comm.rank)), MPI.BYTE], other)
        return None
    room = bytearray(NBYTES)
    request = comm.Irecv([room, MPI.BYTE], other)
    return lambda: (request.Wait() and room == data_of(other)) or pytest.fail("wrong data")


@pytest.mark.parametrize("begin", [objects_to, object_from, memory_from])
def test_messages(comm, begin):
    other = partner(comm)
    if comm.rank % 2:
        time.sleep(0.2)  # until the even ranks are in the kernel
    complete = None if other is None else begin(comm, other)
    allreduce(comm)
    if complete is not None:
        complete()


def test_duplicate(comm):
    """Rank 0 is the first in the kernel; the others come there with their duplicates."""
    duplicate, request = comm.Idup()
    if comm.rank:
        time.sleep(0.1 * comm.rank)
        request.Wait()
    allreduce(comm)
    request.Wait()
    duplicate.Free()


def test_barrier(comm):
    """Rank 0 is the first in the kernel, the others come there one after the other; of 3 ranks each passes it on."""
    request = comm.Ibarrier()
    if comm.rank:
        time.sleep(0.1 * comm.rank)
        request.Wait()
    allreduce(comm)
    request.Wait()
