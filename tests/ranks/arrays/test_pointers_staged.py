"""Device memory in the clothes of host objects, in calls that MPI does on host copies: the pointer never gets there."""

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx.derived.datatype import Datatype
from pyncclx.staging.stage import Op
from support.arrays import host_only
from support.device_memory import CLOTHES, installed
from support.fake_gpu import ramp
from support.reversed_ranks import ring
from support.staging_comm import staging

pytestmark = host_only
in_all_clothes = pytest.mark.parametrize("clothes", CLOTHES)
memory, comm = pytest.fixture(installed), pytest.fixture(staging)


@in_all_clothes
@pytest.mark.parametrize("name", ["Bsend", "Rsend", "Send_init", "Bsend_init", "Ssend_init", "Rsend_init"])
def test_messages(comm, memory, clothes, name):
    right, left = ring(comm)
    x, y = memory.put(ramp(comm, 40)), memory.put(np.full(43, -1.0))
    if name.startswith("Bsend"):
        MPI.Attach_buffer(MPI.Alloc_mem(1 << 16))
    receive = comm.Recv_init(y.spec(clothes), left, 3)
    sending = getattr(comm, name)(x.spec(clothes), right, 3) if name.endswith("_init") else None
    for turn in range(2):
        x.host[:] = ramp(comm, 40) + turn
        receive.Start()
        comm.Barrier()
        if sending is None:
            getattr(comm, name)(x.spec(clothes), right, 3)
        else:
            sending.Start()
            sending.Wait()
        receive.Wait()
        np.testing.assert_array_equal(y.host, [*ramp(comm, 40, rank=left) + turn, -1, -1, -1])
    for request in (receive, sending):
        if request is not None:
            request.Free()
    if name.startswith("Bsend"):
        MPI.Detach_buffer()


@in_all_clothes
def test_one_sided(comm, memory, clothes):
    """A window of host memory, and one of device memory."""
    right, left = ring(comm)
    host = pyncclx.Win.Allocate(64, 8, comm=comm)
    exposed = comm.Alloc(8, "f8")
    exposed[:] = 0
    for win in (host, pyncclx.Win.Create(exposed, 8, comm=comm)):
        x, y, old = (memory.put(values) for values in (ramp(comm, 4), np.zeros(4), np.full(1, -1.0)))
        win.Fence()
        win.Put(x.spec(clothes), right)
        win.Fence()
        win.Get(y.spec(clothes), right)
        win.Fence()
        win.Fetch_and_op(x.spec(clothes, 1), old.spec(clothes, 1), right, 1, MPI.SUM)
        win.Fence()
        np.testing.assert_array_equal(y.host, x.host)
        np.testing.assert_array_equal(old.host, x.host[1])
        mine = np.frombuffer(win.tomemory(), "f8")
        np.testing.assert_array_equal(mine[:4] - ramp(comm, 4, rank=left), [0, 100 * left, 0, 0])
        win.Fence()
        win.Free()


@in_all_clothes
def test_a_window_over_a_pointer(comm, memory, clothes):
    """Memory from `Alloc` by its address is a window's; MPI exposes a copy of other memory, or all ranks refuse it."""
    right, left = ring(comm)
    exposed, elsewhere = comm.Alloc(8, "f8"), memory.put(np.zeros(8))
    buffer = MPI.buffer.fromaddress(exposed.ctypes.data, exposed.nbytes)
    for window, values in ((buffer, exposed), (elsewhere.dressed(clothes), elsewhere.host)):
        win = pyncclx.Win.Create(window, 8, comm=comm)
        win.Fence()
        win.Put(memory.put(ramp(comm, 8)).spec(clothes), right)
        win.Fence()
        np.testing.assert_array_equal(values, ramp(comm, 8, rank=left))
        win.Free()
    comm.staging = False
    with pytest.raises(pyncclx.NotSupported, match=r"not from comm\.Alloc"):
        pyncclx.Win.Create(memory.put(np.zeros(4)).dressed(clothes), comm=comm)


@in_all_clothes
def test_local_operations(comm, memory, clothes):
    x, y = memory.put(ramp(comm, 6)), memory.put(np.full(9, 10.0))
    Op.constants["SUM"].Reduce_local(x.spec(clothes, 6), y.spec(clothes, 6))
    np.testing.assert_array_equal(y.host, [*ramp(comm, 6) + 10, 10, 10, 10])
    column = Datatype(MPI.DOUBLE).Create_vector(3, 1, 2).Commit()
    packed = memory.put(np.zeros(24, "u1"))
    place = x.dressed(clothes)
    room = packed.untyped("buffer")
    end = Datatype(column).Pack(place, room, 0, comm)
    np.testing.assert_array_equal(packed.host.view("f8")[: end // 8], ramp(comm, 6)[::2])
    x.host[:] = 0
    Datatype(column).Unpack(room, 0, place, comm)
    np.testing.assert_array_equal(x.host[::2], ramp(comm, 6)[::2])
    external = memory.put(np.zeros(24, "u1"))
    Datatype(column).Pack_external("external32", place, external.untyped("buffer"), 0)
    np.testing.assert_array_equal(external.host.view(">f8"), ramp(comm, 6)[::2])
    column.Free()


def test_datatypes_beyond_the_own_length(comm, memory):
    """MPI's copy of a buffer by address is as long as the datatype reaches, or MPI would write behind it."""
    right, left = ring(comm)
    column = MPI.DOUBLE.Create_vector(6, 1, 50).Create_resized(0, 8).Commit()
    x, y = memory.put(ramp(comm, 300).reshape(6, 50)), memory.put(np.full((6, 50), -1.0))
    expected = np.full((6, 50), -1.0)
    expected[:, :20] = ramp(comm, 300, rank=left).reshape(6, 50)[:, :20]
    receive = comm.Recv_init([MPI.buffer.fromaddress(y.address, 8), 20, column], left)
    receive.Start()
    MPI.Attach_buffer(MPI.Alloc_mem(1 << 16))
    comm.Bsend([MPI.buffer.fromaddress(x.address, 0), 20, column], right)
    receive.Wait()
    receive.Free()
    MPI.Detach_buffer()
    np.testing.assert_array_equal(y.host, expected)
    column.Free()
