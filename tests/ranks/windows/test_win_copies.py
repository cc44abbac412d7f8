"""Copies of a window are the same window: of its handle, by the constructor, and those that MPI gives to functions."""

import gc

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from support.arrays import get, host_only, put
from support.error_handlers import unfollow_handlers
from support.everywhere import assert_everywhere, raises_everywhere
from support.reference import comparing, labels
from support.window_memory import COUNT, Memory, opened

memory = pytest.fixture(opened)
WAYS = {
    "constructor": pyncclx.Win,
    "of mpi4py's": lambda win: pyncclx.Win(MPI.Win(win)),
    "fromhandle": lambda win: pyncclx.Win.fromhandle(win.handle),
    "f2py": lambda win: pyncclx.Win.f2py(win.py2f()),
}
ways = pytest.mark.parametrize("copied", WAYS.values(), ids=WAYS)
seen = []  # sizes of the windows that functions were called with
HANDLER = pyncclx.Win.Create_errhandler(lambda win, code: seen.append((win.attrs[1], len(win.tomemory()))))


def right_and_left(comm):
    return (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size


def device_memory():
    return MPI.Info.Create({"pyncclx_memory": "device"})


@ways
def test_operations(comm, memory, copied):
    """The copy puts, fetches and gets; the fences are the window's own."""
    copy, (right, left) = copied(memory.win), right_and_left(comm)
    value, old, back = put(labels(comm.rank, COUNT)), put(np.zeros(1, "i8")), put(np.zeros(COUNT, "i8"))
    assert copy == memory.win
    memory.win.Fence()
    copy.Put(value, right, 2)
    memory.win.Fence()
    copy.Fetch_and_op(put(np.full(1, 5)), old, right, 2)
    memory.win.Fence()
    copy.Get(back, right, 2)
    memory.win.Fence()
    expected, fetched = labels(left, COUNT), labels(comm.rank, COUNT)
    expected[0], fetched[0] = expected[0] + 5, fetched[0] + 5
    with comparing() as compare:
        compare(put(memory.read()[2 : 2 + COUNT]), expected, "Put")
        compare(old, labels(comm.rank, 1), "Fetch_and_op")
        compare(back, fetched, "Get")


@ways
def test_epochs(comm, memory, copied):
    """The copy completes what the window has begun."""
    copy, (right, left) = copied(memory.win), right_and_left(comm)
    memory.win.Lock(right)
    memory.win.Put(put(labels(comm.rank, COUNT)), right)
    copy.Unlock(right)
    MPI.Comm.Barrier(comm)  # MPICH unlocks only while the target is in MPI, not in the wait for a signal
    copy.Put_signal(put(labels(comm.rank, 1)), right, COUNT, 3)
    memory.win.Wait_signal(3)
    copy.Fence()
    expected = np.append(labels(left, COUNT), labels(left, 1))
    with comparing() as compare:
        compare(put(memory.read()[: COUNT + 1]), expected, "Put")


@ways
def test_what_it_is(comm, memory, copied):
    copy, win, (right, _) = copied(memory.win), memory.win, right_and_left(comm)
    assert (copy.attrs, copy.flavor, copy.model) == (win.attrs, win.flavor, win.model)
    sizes = copy.tomemory().nbytes, copy.remote(right).nbytes, copy.Shared_query(right)[0].nbytes
    assert sizes == (win.tomemory().nbytes, win.remote(right).nbytes, win.Shared_query(right)[0].nbytes)


@ways
def test_a_dynamic_window(comm, copied):
    win, array, (right, left) = pyncclx.Win.Create_dynamic(comm=comm), comm.Alloc(COUNT, "i8"), right_and_left(comm)
    copy = copied(win)
    win.Attach(array)
    there = MPI.Comm.allgather(comm, array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr)[right]
    win.Fence()
    copy.Put(put(labels(comm.rank, COUNT)), right, there)
    win.Fence()
    found = get(array)
    copy.Detach(array)
    win.Free()
    assert found.tolist() == labels(left, COUNT).tolist()


@ways
def test_free(comm, copied):
    """MPI has freed the window of all objects: it would crash with its handle."""
    win = Memory(comm).win
    copy, other = copied(win), pyncclx.Win(win)
    copy.Free()
    assert_everywhere(comm, win == copy == other == MPI.WIN_NULL)
    for call in (win.Fence, win.Free, lambda: win.Put(put(np.zeros(1, "i8")), 0), lambda: other.attrs, other.tomemory):
        with raises_everywhere(comm, MPI.Exception) as raised:
            call()
        assert raised.value.Get_error_class() == MPI.ERR_WIN


def test_free_by_mpi4py(comm):
    """By an object that has only the handle."""
    win = Memory(comm).win
    MPI.Win(win).Free()
    assert_everywhere(comm, win == MPI.WIN_NULL)
    with raises_everywhere(comm, MPI.Exception):
        win.Put(put(np.zeros(1, "i8")), 0)


def test_a_new_window_with_a_handle_of_old(comm):
    """MPI may give a freed handle to the next window, which has other memory."""
    old = Memory(comm).win
    copy = pyncclx.Win(old)
    old.Free()
    plain = pyncclx.Win.Allocate(8, 8, comm=comm)
    found = pyncclx.Win.fromhandle(plain.handle)
    sizes = found.attrs[1], len(found.tomemory()), bool(copy)
    plain.Free()
    assert sizes == (8, 8, False)


def test_a_handle_outlives_its_objects(comm):
    """A window ends with `Free`, not with the object that made it."""
    memory, (right, left) = Memory(comm), right_and_left(comm)
    handle = memory.win.handle
    del memory.win
    gc.collect()
    win = pyncclx.Win.fromhandle(handle)
    win.Fence()
    win.Put(put(labels(comm.rank, COUNT)), right)
    win.Fence()
    found = memory.read()[:COUNT]
    win.Free()
    assert found.tolist() == labels(left, COUNT).tolist()


@host_only
def test_error_handlers(comm, memory):
    """Their functions get this library's window."""
    seen.clear()
    memory.win.Set_errhandler(HANDLER)
    with raises_everywhere(comm, MPI.Exception):
        memory.win.Put(put(np.zeros(1, "i8")), 99)
    memory.win.Set_errhandler(MPI.ERRORS_RETURN)
    unfollow_handlers()
    assert seen == [(memory.array.nbytes, memory.array.nbytes)]


def test_functions_of_attributes(comm):
    """They get this library's window; other objects are windows still."""
    win, told = Memory(comm).win, []
    copy = pyncclx.Win(win)
    win.Set_name("named")
    keyval = pyncclx.Win.Create_keyval(delete_fn=lambda *args: told.append((type(args[0]), *args[1:], copy.name)))
    win.Set_attr(keyval, "value")
    number = keyval
    win.Free()
    pyncclx.Win.Free_keyval(keyval)
    assert told == [(pyncclx.Win, number, "value", "named")]


@pytest.mark.parametrize("way", ["Create", "Allocate", "Allocate_shared"])
def test_the_flavor(comm, way):
    """That of mpi4py's window of host memory."""
    info, plain = device_memory(), MPI.Intracomm(comm)
    if way == "Create":
        win, host = pyncclx.Win.Create(comm.Alloc(2, "i8"), 8, info, comm), MPI.Win.Create(np.zeros(2), 8, comm=plain)
    else:
        win, host = getattr(pyncclx.Win, way)(16, 8, info, comm), getattr(MPI.Win, way)(16, 8, comm=plain)
    found = (win.flavor, win.Get_attr(MPI.WIN_CREATE_FLAVOR), pyncclx.Win(win).flavor)
    expected = (host.flavor,) * 3
    for each in (win, host):
        each.Free()
    info.Free()
    assert found == expected
