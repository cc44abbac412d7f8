"""Dynamic windows: attached arrays of `comm.Alloc` are addressed by their addresses on the target; others go to MPI."""

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx import NotSupported
from support.arrays import get, gpu_only, put, xp
from support.everywhere import raises_everywhere
from support.reference import comparing, labels

COUNT = 37
pytestmark = pytest.mark.parametrize("comm", ["reversed"] if MPI.COMM_WORLD.size > 1 else ["dup"], indirect=True)


class Attached:
    """Two arrays of each rank, attached to one window, and where they are."""

    def __init__(self, comm):
        self.win = pyncclx.Win.Create_dynamic(comm=comm)
        self.arrays = [comm.Alloc(COUNT + comm.rank + 1, "i8") for _ in range(2)]  # later than the window
        self.addresses = []
        for array in self.arrays:
            array[...] = 77
            self.win.Attach(array)
            self.addresses.append(MPI.Comm.allgather(comm, address_of(array)))

    def close(self):
        for array in self.arrays:
            self.win.Detach(array)
        self.win.Free()


def address_of(array):
    return array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr


@pytest.fixture
def attached(comm):
    made = Attached(comm)
    yield made
    made.close()


def test_put_get_accumulate(comm, attached):
    """To the right neighbour: into the middle of its second array, and back from there."""
    win, right, left = attached.win, (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    data, back, old = put(labels(comm.rank, COUNT - 2)), put(np.zeros(COUNT - 2, "i8")), put(np.zeros(1, "i8"))
    there = attached.addresses[1][right] + 8
    win.Fence()
    win.Put(data, right, there)
    win.Fence()
    win.Accumulate(put(np.full(COUNT - 2, 3)), right, (there, COUNT - 2, MPI.INT64_T))
    win.Fence()
    win.Rget(back, right, there).Wait()
    win.Fetch_and_op(put(np.ones(1, "i8")), old, right, attached.addresses[0][right])
    win.Fence()
    with comparing() as compare:
        compare(back, labels(comm.rank, COUNT - 2) + 3, "Rget")
        compare(old, np.full(1, 77), "Fetch_and_op")
        compare(attached.arrays[0][:2], np.array([78, 77]), "first array")
        compare(attached.arrays[1][1 : COUNT - 1], labels(left, COUNT - 2) + 3, "second array")
        compare(attached.arrays[1][COUNT - 1 :], np.full(comm.rank + 2, 77), "behind it")
        compare(attached.arrays[1][:1], np.full(1, 77), "before it")


def test_locks(comm, attached):
    """All ranks count on rank 0, and take turns there."""
    win, place = attached.win, attached.addresses[0][0]
    value, seen, one = put(np.zeros(1, "i8")), put(np.zeros(1, "i8")), put(np.ones(1, "i8"))
    for _ in range(3):
        win.Lock(0)
        win.Get(value, 0, place)
        win.Flush(0)
        value += 1
        win.Put(value, 0, place)
        win.Unlock(0)
    MPI.Comm.Barrier(comm)
    win.Lock_all()
    win.Get_accumulate(one, seen, 0, place, MPI.NO_OP)
    win.Flush_all()
    win.Unlock_all()
    assert int(get(seen)[0]) == 77 + 3 * comm.size


def test_locks_while_a_message_waits(comm, attached):
    """A rank that waits for a lock lets MPI go on, though a message is there that no rank has received yet."""
    win, place = attached.win, attached.addresses[0][0]
    value, one = put(np.zeros(1, "i8")), put(np.ones(1, "i8"))
    world = MPI.COMM_WORLD
    sent = world.Isend(bytearray(3), (world.rank + 1) % world.size, 5)
    for _ in range(50):
        win.Lock(0)
        win.Fetch_and_op(one, value, 0, place)
        win.Flush(0)
        win.Unlock(0)
    world.Recv(bytearray(3), (world.rank - 1) % world.size, 5)
    sent.Wait()
    MPI.Comm.Barrier(comm)
    win.Lock(0)
    win.Get(value, 0, place)
    win.Unlock(0)
    assert int(get(value)[0]) == 77 + 50 * comm.size


def test_host_memory_beside_device_memory(comm, attached):
    """What has been attached of the host's is reached by MPI."""
    host, right = np.full(COUNT, -1), (comm.rank + 1) % comm.size
    attached.win.Attach(host)
    there = MPI.Comm.allgather(comm, MPI.Get_address(host))[right]
    attached.win.Fence()
    attached.win.Put(labels(comm.rank, COUNT), right, there)
    attached.win.Put(put(labels(comm.rank, 5)), right, attached.addresses[0][right])
    attached.win.Fence()
    attached.win.Detach(host)
    left = (comm.rank - 1) % comm.size
    with comparing() as compare:
        compare(put(host), labels(left, COUNT), "host")
        compare(attached.arrays[0][:5], labels(left, 5), "device")


def test_refusals(comm, attached):
    """Before anything moves, and the window goes on."""
    win, two, past = attached.win, put(np.zeros(2, "i8")), attached.addresses[0][0] + 8 * (COUNT + 0)
    for expected, text, call in (
        (MPI.Exception, "in no array from comm.Alloc of rank 0", lambda: win.Put(two, 0, past)),
        (NotSupported, "Put_signal: .* not made of device memory", lambda: win.Put_signal(two, 0, past)),
        (NotSupported, "remote: .* not made of device memory", lambda: win.remote(0)),
    ):
        with raises_everywhere(comm, expected, match=text):
            call()
    win.Put(two, MPI.PROC_NULL, past)
    with raises_everywhere(comm, MPI.Exception) as raised:
        win.Put(np.zeros(2, "i8"), comm.size, past)
    assert raised.value.Get_error_class() == MPI.ERR_RANK


def test_addresses_are_integers_of_any_kind(comm, attached):
    """Those of NumPy come out of arrays that were gathered; what is none is refused as mpi4py does."""
    win, right = attached.win, (comm.rank + 1) % comm.size
    places = np.array(attached.addresses[0])
    win.Fence()
    win.Put(put(labels(comm.rank, 1)), right, places[right])
    win.Put(put(labels(comm.rank, 1)), float(right), [places[right] + 8, np.int32(1)])
    win.Fence()
    with raises_everywhere(comm, TypeError, match="target is"):
        win.Put(put(labels(comm.rank, 1)), right, (float(places[right]),))
    with comparing() as compare:
        compare(attached.arrays[0][:2], labels((comm.rank - 1) % comm.size, 1).repeat(2), "from the left")


def test_the_communicator_goes_first(comm):
    """The window works without it."""
    dup = comm.Dup()
    win, host = pyncclx.Win.Create_dynamic(comm=dup), np.full(COUNT, -1)
    dup.Free()
    win.Attach(host)
    places = MPI.Comm.allgather(comm, MPI.Get_address(host))
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    win.Fence()
    win.Put(labels(comm.rank, COUNT), right, places[right])
    win.Fence()
    found = host.copy()
    win.Detach(host)
    win.Free()
    np.testing.assert_array_equal(found, labels(left, COUNT))


@gpu_only
def test_arrays_from_elsewhere(comm, attached):
    with raises_everywhere(comm, NotSupported, match="must be from comm.Alloc"):
        attached.win.Attach(xp.zeros(4))


def test_without_device_memory(comm):
    """It is mpi4py's, of a communicator that has not met for kernels."""
    with comm.Dup() as dup:
        win, host = pyncclx.Win.Create_dynamic(comm=dup), np.full(3, -1)
        win.Attach(host)
        there = MPI.Comm.allgather(dup, MPI.Get_address(host))[dup.size - 1]
        win.Lock(dup.size - 1, MPI.LOCK_SHARED)
        if dup.rank == 0:
            win.Put(np.arange(3), dup.size - 1, there)
        win.Unlock(dup.size - 1)
        MPI.Comm.Barrier(dup)
        win.Lock(dup.rank)
        found = host.copy()
        win.Unlock(dup.rank)
        win.Detach(host)
        win.Free()
    assert (found == (np.arange(3) if comm.rank == comm.size - 1 else np.full(3, -1))).all()
