"""Communicators over nodes that are dropped without Free: the next ones have their memory, and right results."""

import gc

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx import backends
from support.arrays import put, xp
from support.everywhere import assert_everywhere

WORLD = MPI.COMM_WORLD
SIZE, RANK = WORLD.size, WORLD.rank
COUNT = 20_001
pytestmark = pytest.mark.ranks(2)


@pytest.fixture
def comm(monkeypatch):
    """A communicator over pretend nodes."""
    monkeypatch.setenv("PYNCCLX_NODE", str(2 * RANK // SIZE))
    comm = pyncclx.Communicator().Dup()
    yield comm
    comm.Free()


def used(comm, step):
    """Make calls of several kinds, and look at their results."""
    y, rows = xp.full(COUNT, -1.0), xp.full((SIZE, 3), -1.0)
    comm.Allreduce(put(np.full(COUNT, float(step + comm.rank))), y)
    comm.Alltoallv([put(np.full((SIZE, 3), float(comm.rank))), put(np.ones(SIZE, "i8"))], rows, layout="packed")
    comm.Iallreduce(put(np.ones(7)), small := xp.zeros(7)).Wait()
    comm.synchronize()
    expected = SIZE * step + SIZE * (SIZE - 1) / 2
    assert_everywhere(WORLD, (y == expected).all() and (small == SIZE).all(), f"step {step}: {y[0]}")
    assert_everywhere(WORLD, (rows == xp.arange(SIZE)[:, None]).all(), f"step {step}: {rows}")


def test_a_first_call_makes_no_stream(comm, monkeypatch):
    """The driver may wait for kernels before it creates one, and they for ranks that wait for this call."""
    device, made = backends.select(), []
    monkeypatch.setattr(device, "new_stream", lambda: made.append(1))
    comm.Allreduce(xp.zeros(0), xp.zeros(0))
    assert_everywhere(WORLD, not made, f"{len(made)} streams")


def test_many_in_turn(comm):
    """More than there are leases for, by Dup and by Split; those that are still there go on."""
    kept = comm.Split(0, -RANK)
    used(kept, 1)
    for step in range(2, 40):
        other = comm.Dup() if step % 2 else comm.Split(0, RANK)
        used(other, step)
    gc.collect()
    leases = len(kept.spanning.team.heap.leases)
    assert_everywhere(WORLD, leases <= 6, f"{leases} leases")
    used(kept, 3)
    kept.Free()


def test_a_request_keeps_its_communicator(comm):
    other, y = comm.Dup(), xp.zeros(5)
    request = other.Allreduce_init(put(np.full(5, float(RANK))), y)
    del other
    for step in range(3):
        used(comm.Dup(), step)
        request.Start()
        request.Wait()
        assert_everywhere(WORLD, (y == SIZE * (SIZE - 1) / 2).all(), str(y))
        y[...] = -1
    request.Free()


def test_one_that_not_all_ranks_have_dropped(comm):
    """It stays, and can be called as soon as all ranks do so again."""
    other = comm.Dup()
    used(other, 1)
    kept = [other] if RANK == 0 else [MPI.Intracomm(other)]
    del other
    used(comm.Dup(), 2)
    used(comm.Dup(), 3)
    again = kept[0] if RANK == 0 else pyncclx.Communicator(kept[0])
    used(again, 4)
    again.Free()
