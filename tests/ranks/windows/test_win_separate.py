"""Windows of device arrays that peers have not mapped, over nodes: MPI's separate memory model, beside mpi4py's."""

import gc
import os
import weakref

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx.windows import exposed, views
from support import fake_gpu
from support.arrays import HOST, gpu_only, host_only
from support.everywhere import assert_everywhere, raises_everywhere
from support.reference import NODES, labels
from support.separate_windows import COUNT, PROGRAMS, DeviceSide, Side

pytestmark = pytest.mark.ranks(2)
RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size


@pytest.fixture(autouse=True)
def gpu(monkeypatch):
    """A stand-in, where there is none."""
    if not HOST:
        return None
    for module in (exposed, views):
        monkeypatch.setattr(module, "host_arrays", lambda: False)
    return fake_gpu.installed(monkeypatch)


def made(monkeypatch, node):
    monkeypatch.setenv("PYNCCLX_NODE", os.environ["PYNCCLX_NODE"] if NODES else node)
    comm = pyncclx.Communicator().Dup()
    comm.staging = True
    return comm


@pytest.fixture
def comm(monkeypatch):
    """A communicator that stages: two nodes, ranks in turn, or those of the run."""
    comm = made(monkeypatch, str(RANK % 2))
    assert comm.node_topology.node_count > 1
    yield comm
    comm.Free()


@pytest.fixture
def side(comm):
    return DeviceSide(comm)


@pytest.mark.parametrize("name", PROGRAMS)
def test_as_mpi4py(comm, side, name):
    """The same program on host arrays has the same results."""
    expected, found = PROGRAMS[name](Side(comm)), PROGRAMS[name](side)
    assert len(found) == len(expected) > 0
    for number, (each, wanted) in enumerate(zip(found, expected, strict=True)):
        np.testing.assert_array_equal(each, wanted, f"{name}: result {number}")


@pytest.mark.one_node
@pytest.mark.parametrize("name", ["fences", "locks", "accumulates"])
def test_arrays_from_elsewhere_on_one_node(monkeypatch, name):
    """Peers have not mapped them either."""
    comm = made(monkeypatch, "the same")
    assert comm.node_topology.node_count == 1
    expected, found = PROGRAMS[name](Side(comm)), PROGRAMS[name](DeviceSide(comm))
    comm.Free()
    for number, (each, wanted) in enumerate(zip(found, expected, strict=True)):
        np.testing.assert_array_equal(each, wanted, f"{name}: result {number}")


def test_what_it_is(side):
    memory, win = side.window(np.zeros(COUNT + side.rank))
    address = memory.__cuda_array_interface__["data"][0]
    attributes, kind, model = win.attrs, win.Get_attr(MPI.WIN_CREATE_FLAVOR), win.Get_attr(MPI.WIN_MODEL)
    properties = win.flavor, win.model
    win.Free()
    assert attributes == (address, 8 * (COUNT + side.rank), 8)
    assert (kind, model) == properties == (MPI.WIN_FLAVOR_CREATE, MPI.WIN_SEPARATE)


def test_only_what_has_changed_goes_to_the_device(side, gpu):
    memory, win = side.window(np.zeros(1000, "u1"))
    win.Fence()
    before = gpu.uploaded if HOST else 0
    win.Fence()
    nothing = gpu.uploaded - before if HOST else 0
    origin = side.array(np.full(3, 5, "u1"))
    win.Put(origin, side.right, 10)
    win.Fence()
    three = gpu.uploaded - before if HOST else 3
    found = side.read(memory)
    win.Free()
    assert (nothing, three) == (0, 3)
    assert np.flatnonzero(found).tolist() == [10, 11, 12]


@pytest.mark.parametrize("copied", [pyncclx.Win, lambda win: pyncclx.Win.fromhandle(win.handle)])
def test_copies_of_the_window(side, copied):
    """They end epochs, which copy the window's memory, and results of staged operations, to the device."""
    memory, win = side.window(np.zeros(COUNT, "i8"))
    host = pyncclx.Win.Allocate(COUNT * 8, 8, comm=side.comm)
    copy, other, got = copied(win), copied(host), side.zeros(COUNT)
    for each in (copy, other):
        each.Fence()
    win.Put(side.array(labels(side.rank, COUNT)), side.right)
    host.Put(labels(side.rank, COUNT), side.right)
    for each in (copy, other):
        each.Fence()
    host.Get(got, side.rank)
    other.Fence()
    found = side.read(memory), side.read(got)
    attributes = copy.attrs == win.attrs, copy.model
    other.Free()
    copy.Free()
    assert [each.tolist() for each in found] == 2 * [labels(side.left, COUNT).tolist()]
    assert attributes == (True, MPI.WIN_SEPARATE)
    assert win == host == MPI.WIN_NULL


def test_nothing_is_left_after_free(side):
    memory, win = side.window(np.zeros(COUNT))
    copy = weakref.ref(win._state.copies[0])
    win.Free()
    gc.collect()
    assert copy() is None
    assert win == MPI.WIN_NULL
    assert side.read(memory).tolist() == [0] * COUNT


def test_a_wait_for_a_rank_that_does_not_complete_ends(side, monkeypatch):
    _, win = side.window(np.zeros(COUNT))
    group = side.plain.Get_group()
    neighbour = group.Incl([side.left])
    win.Post(neighbour)
    with monkeypatch.context() as patch:
        patch.setenv("PYNCCLX_TIMEOUT", "0.3")
        with raises_everywhere(side.plain, pyncclx.PeerTimeout, match="Win.Wait"):
            win.Wait()
    to = group.Incl([side.right])
    win.Start(to)
    win.Complete()
    win.Wait()
    for each in (group, neighbour, to):
        each.Free()
    win.Free()


def test_after_free_of_the_communicator(comm, side):
    """The window keeps its array, and goes on."""
    dup = comm.Dup()
    own = DeviceSide(dup)
    memory, win = own.window(np.zeros(COUNT))
    dup.Free()
    win.Fence()
    win.Put(own.array(np.full(COUNT, 1.0 + own.rank)), own.right)
    win.Fence()
    found, got = own.read(memory), own.zeros(COUNT, "f8")
    win.Lock(own.right, MPI.LOCK_SHARED)
    win.Get(got, own.right)
    win.Unlock(own.right)
    side.plain.Barrier()
    win.Free()
    seen = set(found), set(own.read(got))
    assert_everywhere(comm, seen == ({1.0 + own.left}, {1.0 + own.rank}), f"{seen}")


def test_refusals(comm, side):
    _, win = side.window(np.zeros(COUNT))
    match = "ranks are on .; Split by node, or Put, Flush and Send"
    one = side.zeros(1)
    for call in (lambda: win.Put_signal(one, 0), win.Wait_signal, lambda: win.remote(0)):
        with raises_everywhere(comm, pyncclx.NotSupported, match=match):
            call()
    win.Free()
    info = MPI.Info.Create({"pyncclx_memory": "device"})
    with raises_everywhere(comm, pyncclx.NotSupported, match="Allocate_shared: the ranks are on .*call Win.Allocate"):
        pyncclx.Win.Allocate_shared(8, 8, info, comm)
    info.Free()
    dynamic = pyncclx.Win.Create_dynamic(comm=comm)
    with raises_everywhere(comm, pyncclx.NotSupported, match="Attach: .*by Win.Create, or attach host memory"):
        dynamic.Attach(one)
    dynamic.Free()


def test_refused_unless_all_ranks_stage(comm, side):
    comm.staging = RANK != 1
    with raises_everywhere(comm, pyncclx.NotSupported, match=r"inside one node.*Split by node.*staging = True"):
        pyncclx.Win.Create(side.array(np.zeros(COUNT)), 8, comm=comm)


def test_arguments_of_one_rank_are_refused_on_all(comm, side):
    mine = RANK == SIZE - 1
    with raises_everywhere(comm, MPI.Exception, match="disp_unit is 0") as raised:
        pyncclx.Win.Create(side.array(np.zeros(COUNT)), 0 if mine else 8, comm=comm)
    assert raised.value.Get_error_class() == MPI.ERR_DISP
    if HOST:  # CuPy has no read-only arrays
        with raises_everywhere(comm, BufferError, match="memory is read-only"):
            pyncclx.Win.Create(fake_gpu.Array(np.zeros(COUNT), readonly=mine), 8, comm=comm)


@host_only
def test_an_error_of_one_rank_is_that_of_all(comm, side, gpu, monkeypatch):
    """A copy to or from the device that fails, in a fence; the window goes on."""
    memory, win = side.window(np.zeros(COUNT))
    win.Fence()
    with monkeypatch.context() as patch:
        if RANK == 0:
            patch.setattr(gpu, "download", lambda *_: 1 / 0)
        with raises_everywhere(comm, ZeroDivisionError):
            win.Fence()
    win.Put(side.array(labels(side.rank, COUNT).astype("f8")), side.right)
    win.Fence()
    assert_everywhere(comm, (memory.host == labels(side.left, COUNT)).all())
    win.Free()


@gpu_only
def test_allocate(comm, side):
    """It is memory of the device, with a public copy."""
    info = MPI.Info.Create({"pyncclx_memory": "device"})
    win = pyncclx.Win.Allocate(COUNT * 8, 8, info, comm)
    info.Free()
    memory = win.tomemory().view("i8")
    memory[...] = -1
    win.Fence()
    win.Put(side.array(labels(side.rank, 3)), side.right, 2)
    win.Fence()
    found = side.read(memory)
    model = win.Get_attr(MPI.WIN_MODEL)
    win.Free()
    assert model == MPI.WIN_SEPARATE
    assert found.tolist() == [-1, -1, *labels(side.left, 3).tolist(), -1, -1]
