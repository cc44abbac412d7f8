"""Requests that a signal handler ends: the kernel still has the arrays that the program then drops.

Tests run with PYNCCLX_SANITIZE=1, under which the host device overwrites memory that is freed.
"""

import itertools
import weakref
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx import backends
from support.arrays import Output, host_only, put
from support.everywhere import assert_everywhere
from support.interruption import Interruption
from support.reference import labels

COUNT = 1007
PACKAGE = Path(pyncclx.__file__).parent
pytestmark = [host_only, pytest.mark.one_node, pytest.mark.ranks(2, 3), pytest.mark.timeout(60)]


@pytest.fixture
def apart():
    """A communicator with a stream of its own, so that no wait for a kernel is a wait of the host."""
    with pyncclx.Communicator(MPI.COMM_WORLD).Dup() as comm:
        comm.stream = backends.select().new_stream()
        yield comm


def nonblocking(comm, out, value):
    """What begins the call and waits for it; it has the only reference to the array."""
    return comm.Iallgather, (put(value), out)


def persistent(comm, out, value):
    """The same of a persistent request, which the ranks make together."""
    return started, (comm.Allgather_init(put(value), out),)


def started(request):
    request.Start()
    return request


@pytest.mark.parametrize("prepare", [nonblocking, persistent])
def test_left_in_a_wait(apart, prepare):
    """The other ranks begin after this rank has left its wait and dropped all it had."""
    out, files = Output((apart.size, COUNT), "i8"), [str(PACKAGE / each) for each in ("launch", "requests", "team")]
    apart.Iallgather(put(labels(apart.rank, COUNT, 0)), out.array).Wait()
    for point in itertools.count(1):
        out.poison()
        has_left = False
        begin, arguments = prepare(apart, out.array, labels(apart.rank, COUNT, point))
        if apart.rank == 0:
            wait = begin(*arguments).Wait
            del begin, arguments
            interruption = Interruption(point, *files)
            interruption.end(wait)
            has_left = not interruption.is_past
            del wait
        MPI.Comm.Barrier(apart)
        if apart.rank > 0:
            begin(*arguments).Wait()
        apart.synchronize()
        expected = np.stack([labels(rank, COUNT, point) for rank in range(apart.size)])
        assert_everywhere(apart, (out.read() == expected).all(), f"point {point}")
        if not MPI.Comm.bcast(apart, has_left):
            break
    assert_everywhere(apart, point > 15, f"{point} points")


NEXT = {"blocking": lambda comm: comm.Allreduce, "nonblocking": lambda comm: lambda x, y: comm.Iallreduce(x, y).Wait()}


@pytest.mark.parametrize("name", NEXT)
def test_arrays_of_dropped_requests_are_freed(name):
    """By the calls after their kernels, though the communicator has no stream of its own."""
    with pyncclx.Communicator(MPI.COMM_WORLD).Dup() as comm:
        x, y, call, dropped = put(np.ones(COUNT)), put(np.zeros(COUNT)), NEXT[name](comm), []
        for _ in range(2):
            call(x, y)
            for _ in range(3):
                array = put(np.ones(COUNT))
                dropped.append(weakref.ref(array))
                comm.Iallreduce(array, put(np.zeros(COUNT)))
                del array
        comm.synchronize()
        call(x, y)
        assert_everywhere(comm, not any(reference() is not None for reference in dropped))
        comm.synchronize()
        assert_everywhere(comm, (y == comm.size).all())
