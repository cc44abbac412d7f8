"""Arrays that the program drops at once: their memory stays until the device has read or written it.

Tests run with PYNCCLX_SANITIZE=1, under which the host device overwrites memory that is freed.
"""

import contextlib
import functools

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx import backends
from support.arrays import Output, get, put, xp
from support.forms import NAMES, arguments, spec, total
from support.reference import comparing, labels

COUNT = 1007  # long enough for a kernel to read it late
CALLS = 6
WAYS = {
    "Wait": lambda request: request.Wait(),
    "Test": lambda request: all(iter(request.Test, True)),
    "Waitall": lambda request: pyncclx.Request.Waitall([request]),
    "mpi4py's": lambda request: MPI.Request.Waitall([request]),
    "Waitany": lambda request: pyncclx.Request.Waitany([request]),
}


@contextlib.contextmanager
def named_stream(comm):
    comm.stream = backends.select().new_stream()
    try:
        yield
    finally:
        comm.synchronize()
        comm.stream = None


@pytest.mark.parametrize("stream", ["current", "named"])
@pytest.mark.parametrize("way", WAYS)
def test_nonblocking(comm, way, stream):
    """The first call, and later ones, which are launched again."""
    blocks = Output((comm.size, COUNT), "i8")
    with comparing() as compare, named_stream(comm) if stream == "named" else contextlib.nullcontext():
        for call in range(CALLS):
            blocks.poison()
            WAYS[way](comm.Iallgather(put(labels(comm.rank, COUNT, call)), blocks.array))
            comm.synchronize()
            compare(blocks, np.stack([labels(rank, COUNT, call) for rank in range(comm.size)]), f"call {call}")


@pytest.mark.parametrize("form", ["nonblocking", "persistent", "blocking"])
@pytest.mark.parametrize("name", NAMES)
def test_every_collective(comm, name, form):
    sent, received, more, named = arguments(comm, name, COUNT)
    output = Output(total(received), "i8")
    with comparing() as compare, named_stream(comm):
        for call in range(3):
            output.poison()
            values, expected = labels(comm.rank, total(sent), call), output.read()
            getattr(MPI.Intracomm, name)(comm, spec(values, sent), spec(expected, received), *more, **named)
            _do(comm, form, name, spec(put(values), sent), spec(output.array, received), *more, **named)
            comm.synchronize()
            compare(output, expected, f"call {call}")


def _do(comm, form, name, *args, **named):
    """Make a call whose request is gone when this returns."""
    if form == "blocking":
        getattr(comm, name)(*args, **named)
    elif form == "nonblocking":
        getattr(comm, f"I{name.lower()}")(*args, **named).Wait()
    else:
        request = getattr(comm, f"{name}_init")(*args, **named)
        request.Start()
        request.Wait()
        request.Free()


@pytest.mark.parametrize("form", ["nonblocking", "persistent"])
def test_dropped_requests(comm, form):
    """A program may drop a request, and then its communicator."""
    other, out = comm.Dup(), [Output((comm.size, COUNT), "i8") for _ in range(CALLS)]
    for call in range(CALLS):
        send = put(labels(comm.rank, COUNT, call))
        if form == "nonblocking":
            other.Iallgather(send, out[call].array)
        else:
            other.Allgather_init(send, out[call].array).Start()
        del send
    xp.full(COUNT, -1)  # may be where one of them was
    other.synchronize()
    other.Free()
    with comparing() as compare:
        for call in range(CALLS):
            compare(out[call], np.stack([labels(rank, COUNT, call) for rank in range(comm.size)]), f"call {call}")


def test_neighbors(comm):
    ring = comm.Create_cart([comm.size], periods=[True])
    below, above = ring.Shift(0, 1)
    blocks = Output((2, COUNT), "i8")
    begin = {
        "nonblocking": lambda send: ring.Ineighbor_allgather(send, blocks.array).Wait(),
        "persistent": functools.partial(_start_neighbors, ring, blocks.array),
    }
    with comparing() as compare, named_stream(ring):
        for call in range(CALLS):
            for form, do in begin.items():
                blocks.poison()
                do(put(labels(ring.rank, COUNT, call)))
                ring.synchronize()
                compare(blocks, np.stack([labels(rank, COUNT, call) for rank in (below, above)]), f"{form} {call}")
    ring.Free()


def _start_neighbors(ring, blocks, send):
    request = ring.Neighbor_allgather_init(send, blocks)
    request.Start()
    request.Wait()
    request.Free()


def test_temporary_specs(comm):
    """Counts and datatypes in a list that is gone with the array."""
    recv = Output(COUNT, "i8")
    with comparing() as compare:
        for call in range(CALLS):
            recv.poison()
            comm.Iallreduce([put(labels(comm.rank, COUNT, call)), COUNT, MPI.INT64_T], recv.array).Wait()
            compare(get(recv.array), sum(labels(rank, COUNT, call) for rank in range(comm.size)), f"call {call}")
