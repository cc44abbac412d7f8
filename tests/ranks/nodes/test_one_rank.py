"""What one rank of a communicator over nodes cannot make: all ranks raise, and no rank of any node keeps anything."""

import gc
import os
from types import SimpleNamespace

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx.failures.detector import DETECTOR
from pyncclx.memory.heap import HEAP
from pyncclx.nodes import rails, spanning
from support.arrays import get, put, xp
from support.everywhere import assert_everywhere, raises_everywhere
from support.leases import leases

WORLD = MPI.COMM_WORLD
SIZE, RANK = WORLD.size, WORLD.rank
LAST = SIZE - 1
pytestmark = pytest.mark.ranks(2)


@pytest.fixture(params=["halves", "one rank each"])
def comm(request, monkeypatch):
    """A communicator over pretend nodes, which has nothing on the device so far; all ranks have met before."""
    monkeypatch.setenv("PYNCCLX_NODE", str(2 * RANK // SIZE if request.param == "halves" else RANK))
    with pyncclx.Communicator().Dup() as before:
        assert_everywhere(WORLD, works(before))
    comm = pyncclx.Communicator().Dup()
    yield comm
    comm.Free()


def works(comm):
    total = xp.empty(20_000, "f4")
    comm.Allreduce(put(np.full(20_000, RANK, "f4")), total)
    return (get(total) == sum(range(SIZE))).all()


def held():
    """What this process holds: leases, communicators it is in, those that the detector looks after, descriptors."""
    gc.collect()
    heap, detector = HEAP.get(), DETECTOR.made
    watched = len(detector._watched) if detector is not None else 0
    return [*leases(heap)], {*heap.living}, +heap.members, watched, len(os.listdir("/proc/self/fd"))


def fail(*_, **__):
    raise MemoryError("none left")


# The node's lease; the engine; what each rank has by itself.
STEPS = {
    "lease": lambda context: context.setattr(HEAP.get().device, "fill_zero", fail),
    "engine": lambda context: context.setattr(rails, "settings", SimpleNamespace(ENGINE=SimpleNamespace(get=fail))),
    "FailureWords": lambda context: context.setattr(spanning, "FailureWords", fail),
    "ErrorRecord": lambda context: context.setattr(spanning, "ErrorRecord", fail),
    "RanksElsewhere": lambda context: context.setattr(spanning, "RanksElsewhere", fail),
}


@pytest.mark.parametrize("step", STEPS)
def test_the_first_call(comm, monkeypatch, step):
    before = held()
    with monkeypatch.context() as context:
        if RANK == LAST:
            STEPS[step](context)
        with raises_everywhere(WORLD, MemoryError, match=f"^none left .failed on rank {LAST} of {SIZE}.$"):
            comm.Allreduce(put(np.ones(3, "f4")), xp.empty(3, "f4"))
    assert_everywhere(WORLD, held() == before, f"{held()}, before {before}")
    assert_everywhere(WORLD, works(comm))


def test_alloc(comm, monkeypatch):
    assert_everywhere(WORLD, works(comm))
    windows = comm.spanning.team.windows
    before = held()
    with monkeypatch.context() as context:
        if RANK == LAST:
            context.setattr(HEAP.get().device, "allocate_shared", fail)
        with raises_everywhere(WORLD, MemoryError, match=f"^none left .failed on rank {LAST} of {SIZE}.$"):
            comm.Alloc(1000)
    assert_everywhere(WORLD, len(windows) == 0 and held() == before, f"{len(windows)} windows, {held()}")
    assert_everywhere(WORLD, comm.Alloc(1000).size == 1000 and [*windows.by_number] == [0] and works(comm))
