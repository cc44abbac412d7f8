"""On GPUs: calls that block the host, on memory of other libraries, end while a kernel of the program still runs."""

from contextlib import contextmanager

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from support.arrays import Interface, get, gpu_only, put, xp
from support.forms import FORMS, call
from support.reversed_ranks import ring

pytestmark = gpu_only
HOLD = """
extern "C" __global__ void hold(volatile int *released) {
    for (long long begin = clock64(); !*released && clock64() - begin < 40000000000LL;) {}
}
"""


def foreign(array):
    """The memory as a library has it that names no stream: ready, as the interface's definition says."""
    return Interface(array, stream=None)


@contextmanager
def a_kernel_that_runs_on():
    """On a stream for which the legacy default stream waits."""
    pinned = xp.cuda.alloc_pinned_memory(4)
    released = np.frombuffer(pinned, np.int32, 1)
    released[0] = 0
    stream = xp.cuda.Stream()
    xp.RawKernel(HOLD, "hold")((1,), (1,), (np.uint64(pinned.ptr),), stream=stream)
    try:
        yield
        assert not stream.done, "a call has waited for the kernel"
    finally:
        released[0] = 1
        stream.synchronize()


@pytest.fixture
def comm():
    with pyncclx.Communicator(MPI.COMM_WORLD).Dup() as made:
        made.blocking = "host"
        yield made


def collectives(comm, x, y):
    for form in FORMS:
        call(comm, form, "Allreduce", x, y, starts=2)
    comm.Bcast(x, 0)
    comm.Barrier(device=True)


def messages(comm, x, y):
    right, left = ring(comm)
    for _ in range(3):  # MPI brings the data of the first
        comm.Sendrecv(x, right, 0, y, left, 0)
        pyncclx.Request.Waitall([comm.Irecv(y, left), comm.Isend(x, right)])


def persistent_messages(comm, x, y):
    right, left = ring(comm)
    requests = [comm.Recv_init(y, left), comm.Send_init(x, right)]
    for _ in range(3):
        pyncclx.Prequest.Startall(requests)
        pyncclx.Request.Waitall(requests)
    for request in requests:
        request.Free()


def values(comm, count, rank):
    return np.arange(count) % 97 + 100.0 * rank


KINDS = {
    collectives: lambda comm, count: sum(values(comm, count, rank) for rank in range(comm.size)),
    messages: lambda comm, count: values(comm, count, ring(comm)[1]),
    persistent_messages: lambda comm, count: values(comm, count, ring(comm)[1]),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [64, 40_000])
def test_calls_end_beside_it(comm, kind, count):
    mine, results = values(comm, count, comm.rank), xp.full(count, -1.0)
    x, y = put(mine), foreign(results)
    kind(comm, foreign(x), y)  # what is loaded at the first use waits for the device
    x[...], results[...] = put(mine), -1.0
    xp.cuda.Device().synchronize()
    with a_kernel_that_runs_on():
        kind(comm, foreign(x), y)
    np.testing.assert_array_equal(get(results), KINDS[kind](comm, count))
