"""Windows over pretend nodes: those of host memory are MPI's, and what needs memory that ranks map says what to do."""

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx import Win
from pyncclx.windows import exposed
from support import fake_gpu
from support.arrays import host_only
from support.everywhere import raises_everywhere

pytestmark = [host_only, pytest.mark.ranks(2)]
RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size


@pytest.fixture
def comm(monkeypatch):
    """Ranks on two nodes, in turn."""
    monkeypatch.setenv("PYNCCLX_NODE", str(RANK % 2))
    comm = pyncclx.Communicator().Dup()
    assert comm.node_topology.node_count == 2
    yield comm
    comm.Free()


def test_operations_by_mpi(comm):
    """The host device's arrays are in host memory; each rank accesses its right neighbour, and counts on rank 0."""
    memory, right = comm.Alloc(8, "i8"), (RANK + 1) % SIZE
    memory[...] = RANK
    win, got, old = Win.Create(memory, 8, comm=comm), np.zeros(8, "i8"), np.zeros(1, "i8")
    win.Fence()
    win.Put(np.full(2, 100 + RANK), right, 2)
    win.Accumulate(np.full(2, 10), right, 4)
    win.Fence()
    win.Get(got, right)
    win.Fence()
    assert got.tolist() == [right, right, 100 + RANK, 100 + RANK, right + 10, right + 10, right, right]
    win.Lock(0)
    win.Fetch_and_op(np.ones(1, "i8"), old, 0, 7)
    win.Unlock(0)
    assert sorted(MPI.Comm.allgather(comm, int(old[0]))) == list(range(SIZE))
    win.Lock(right)
    win.Compare_and_swap(np.full(1, 7), np.full(1, right), old, right, 6)
    win.Unlock(right)
    MPI.Comm.Barrier(comm)
    win.Lock(RANK)
    assert (old[0], memory[6]) == (right, 7)
    win.Unlock(RANK)
    win.Free()


def test_the_flavor(comm):
    """Of device memory that peers have not mapped."""
    info = MPI.Info.Create({"pyncclx_memory": "device"})
    comm.staging = True
    win = Win.Allocate(16, 8, info, comm)
    found = win.flavor, win.Get_attr(MPI.WIN_CREATE_FLAVOR), Win(win).flavor
    win.Free()
    info.Free()
    assert found == (MPI.WIN_FLAVOR_ALLOCATE,) * 3


def test_signals_name_the_way_out(comm):
    win = Win.Create(comm.Alloc(4, "i8"), 8, comm=comm)
    match = "ranks are on 2; Split by node, or Put, Flush and Send"
    for call in (lambda: win.Put_signal(np.zeros(1, "i8"), 0), win.Wait_signal):
        with raises_everywhere(comm, pyncclx.NotSupported, match=match):
            call()
    win.Free()


def test_device_memory_names_the_way_out(comm, monkeypatch, request):
    """A GPU's arrays, from a stand-in."""
    request.getfixturevalue("gpu")
    monkeypatch.setattr(exposed, "host_arrays", lambda: False)
    match = "inside one node.*Split by node, or make it of host arrays"
    with raises_everywhere(comm, pyncclx.NotSupported, match=match):
        Win.Create(fake_gpu.Array(np.zeros(4)), 8, comm=comm)
    Win.Create(np.zeros(4), 8, comm=comm).Free()


gpu = pytest.fixture(fake_gpu.installed)
