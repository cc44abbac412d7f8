"""Ranks without data that pass an `MPI.buffer` at address 0, as libraries do for empty device arrays."""

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from support.arrays import get, put, synchronize, xp
from support.everywhere import assert_everywhere

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.rank, WORLD.size
LAST = SIZE - 1
# The last rank has nothing to send and nothing to receive.
IS_EMPTY = RANK == LAST
NULL = MPI.buffer.fromaddress(0, 0)
T = MPI.DOUBLE
# One element for each rank except the last.
ONES, DISPLS = [1] * LAST + [0], list(range(SIZE))
COUNTS = [0] * SIZE if IS_EMPTY else ONES
pytestmark = pytest.mark.ranks(2)


def memory(array):
    return array if array.size else NULL


def own(count=1):
    """Return elements with the rank's number; no elements on the last rank."""
    return put(np.full(0 if IS_EMPTY else count, RANK + 1.0))


def room(count=1):
    return put(np.full(0 if IS_EMPTY else count, -1.0))


# What a rank with data receives: an element of each rank with data, and poison in the last place.
OF_ALL = [*(rank + 1.0 for rank in range(LAST)), -1.0]


def alltoallv(comm):
    sent, received = own(SIZE), room(SIZE)
    comm.Alltoallv([memory(sent), (COUNTS, DISPLS), T], [memory(received), (COUNTS, DISPLS), T])
    return received, [] if IS_EMPTY else OF_ALL


def alltoallw(comm):
    sent, received, displs = own(SIZE), room(SIZE), [8 * each for each in DISPLS]
    comm.Alltoallw([memory(sent), (COUNTS, displs), [T] * SIZE], [memory(received), (COUNTS, displs), [T] * SIZE])
    return received, [] if IS_EMPTY else OF_ALL


def ialltoallv(comm):
    sent, received = own(SIZE), room(SIZE)
    comm.Ialltoallv([memory(sent), (COUNTS, DISPLS), T], [memory(received), (COUNTS, DISPLS), T]).Wait()
    return received, [] if IS_EMPTY else OF_ALL


def gatherv(comm):
    sent, received = own(), put(np.full(SIZE, -1.0))
    comm.Gatherv([memory(sent), sent.size, T], [received, (ONES, DISPLS), T] if RANK == 0 else None)
    return received, OF_ALL if RANK == 0 else [-1.0] * SIZE


def scatterv(comm):
    whole, received = put(np.arange(10.0, 10.0 + SIZE)), room()
    comm.Scatterv([whole, (ONES, DISPLS), T] if RANK == 0 else None, [memory(received), received.size, T])
    return received, [] if IS_EMPTY else [10.0 + RANK]


def allgatherv(comm):
    sent, received = own(), put(np.full(SIZE, -1.0))
    comm.Allgatherv([memory(sent), sent.size, T], [received, (ONES, DISPLS), T])
    return received, OF_ALL


def of_nothing(comm):
    nothing = NULL if IS_EMPTY else xp.zeros(0)
    comm.Bcast([nothing, 0, T])
    comm.Allreduce([nothing, 0, T], [nothing, 0, T])
    comm.Reduce([nothing, 0, T], [nothing, 0, T] if RANK == 0 else None)
    return xp.zeros(0), []


def messages(comm):
    """Send and receive messages of no elements, also from and into null buffers."""
    nothing, status, peer = NULL if IS_EMPTY else xp.zeros(0), MPI.Status(), (RANK + 1) % SIZE
    comm.Sendrecv([nothing, 0, T], peer, 3, [nothing, 0, T], (RANK - 1) % SIZE, 3, status)
    assert_everywhere(WORLD, (status.source, status.tag, status.Get_count(T)) == ((RANK - 1) % SIZE, 3, 0))
    pyncclx.Request.Waitall([comm.Irecv([nothing, 0, T], MPI.ANY_SOURCE), comm.Isend([nothing, 0, T], peer)])
    return nothing, []


CALLS = {
    each.__name__: each
    for each in (alltoallv, alltoallw, ialltoallv, gatherv, scatterv, allgatherv, of_nothing, messages)
}


@pytest.mark.parametrize("staging", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_as_with_an_empty_array(name, staging):
    with pyncclx.Communicator(WORLD).Dup() as comm:
        comm.staging = staging
        for turn in range(3):
            received, expected = CALLS[name](comm)
            synchronize()
            found = [] if received is NULL else get(received).tolist()
            assert_everywhere(WORLD, found == expected, f"turn {turn}: {found}, not {expected}")
