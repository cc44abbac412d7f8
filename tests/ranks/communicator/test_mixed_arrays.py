"""Collectives in which one rank has a host array where the others have device arrays, as CUDA-aware MPIs take them."""

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx import events
from support.arrays import get, host_only, put
from support.columns import INT64
from support.forms import NAMES, arguments, call, total

pytestmark = [host_only, pytest.mark.ranks(2)]  # a bytearray is in host memory on the host device, too


@pytest.fixture
def comm():
    """Every rank's calls must be done by kernels: they wait for each other."""
    ways = []
    events.listeners.append(ways.append)
    try:
        with pyncclx.Communicator().Dup() as made:
            made.staging = True
            yield made
            made.synchronize()
    finally:
        events.listeners.remove(ways.append)
    assert {event.how for event in ways} <= {events.NATIVE}


def labels(comm, count):
    return np.arange(count) % 97 + 100.0 * comm.rank


def spec(array, length):
    """In host memory a bytearray, which has no element type."""
    counts = [length[1]] if isinstance(length, tuple) else []
    return [array, *counts, MPI.DOUBLE]


@pytest.mark.parametrize("form", ["blocking", "nonblocking"])
@pytest.mark.parametrize("name", NAMES)
def test_one_buffer_of_one_rank_is_on_the_host(comm, name, form):
    """Of operations with a root, the one that matters at root only."""
    sent, received, after, keywords = arguments(comm, name)
    at_root = {"Scatter": ["send"], "Scatterv": ["send"], "Gather": ["recv"], "Gatherv": ["recv"], "Reduce": ["recv"]}
    for odd in at_root.get(name, ["send", "recv"]):
        me = comm.rank == comm.size - 1  # the root
        x, y = labels(comm, total(sent)), np.full(total(received), -1.0)
        here = bytearray(x.tobytes()) if me and odd == "send" else put(x)
        there = bytearray(y.tobytes()) if me and odd == "recv" else put(y)
        getattr(MPI.Intracomm, name)(comm, spec(x, sent), spec(y, received), *after, **keywords)
        call(comm, form, name, spec(here, sent), spec(there, received), *after, **keywords)
        if not (name == "Exscan" and comm.rank == 0):
            result = np.frombuffer(there) if isinstance(there, bytearray) else get(there)
            np.testing.assert_array_equal(result, y, err_msg=odd)


def test_derived_datatypes(comm):
    """What lies between the elements of the host's array stays."""
    column = INT64.Create_vector(3, 1, 2 * comm.size).Create_resized(0, 8).Commit()
    x, y = np.arange(3) + 10 * comm.rank, np.full((3, 2 * comm.size), -1)
    there = bytearray(y.tobytes()) if comm.rank == 1 else put(y)
    comm.Allgather(put(x), [there, 1, column])
    result = np.frombuffer(there, "i8").reshape(y.shape) if comm.rank == 1 else get(there)
    y[:, : comm.size] = np.stack([np.arange(3) + 10 * rank for rank in range(comm.size)], axis=1)
    np.testing.assert_array_equal(result, y)
    column.Free()


def test_refused_without_staging(comm):
    comm.staging = False
    with pytest.raises(pyncclx.NotSupported, match=r"Allreduce: sendbuf is in host memory.*copy one of them"):
        comm.Allreduce([bytearray(32), MPI.DOUBLE], put(np.zeros(4)))


def test_bad_arguments_of_one_rank(comm):
    """As mpi4py judges them, before anything is launched."""
    with pytest.raises(BufferError, match="read-only"):
        comm.Allreduce(put(np.zeros(4)), [b"12345678" * 4, MPI.DOUBLE])
    with pytest.raises(ValueError, match="mismatch in send count"):
        comm.Allreduce([bytearray(24), MPI.DOUBLE], put(np.zeros(4)))
