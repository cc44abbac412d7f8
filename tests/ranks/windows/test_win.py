"""One-sided communication on device arrays: windows, copies into them, and MPI's ways to synchronise."""

import time

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx import NotSupported
from support.arrays import get, host_only, put, synchronize, xp
from support.everywhere import assert_everywhere, raises_everywhere
from support.reference import comparing, labels
from support.window_memory import COUNT, opened

memory = pytest.fixture(opened)


def test_what_it_is(comm, memory):
    win = memory.win
    assert isinstance(win, MPI.Win)
    _, size, unit = win.attrs
    assert (size, unit) == (memory.array.nbytes, 8)
    assert win.Get_attr(MPI.WIN_SIZE) == size
    assert (win.flavor, win.model) == (MPI.WIN_FLAVOR_CREATE, MPI.WIN_UNIFIED)
    assert win.group_size == comm.size
    for rank in range(comm.size):
        assert win.remote(rank).nbytes == (COUNT * comm.size + rank + 4) * 8
    memory.array[0] = comm.rank + 5
    win.Fence()
    seen = [int(get(win.remote(rank)[:8].view("i8"))[0]) for rank in range(comm.size)]
    assert seen == [rank + 5 for rank in range(comm.size)]
    win.Fence()


def test_put_everywhere(comm, memory):
    """Each rank has a stretch in every rank's memory."""
    win = memory.win
    sends = [put(labels(comm.rank, COUNT, call)) for call in range(comm.size)]
    win.Fence()
    for rank in range(comm.size):
        win.Put(sends[rank], rank, comm.rank * COUNT)
    win.Fence()
    expected = np.concatenate([labels(rank, COUNT, comm.rank) for rank in range(comm.size)])
    found = memory.read()
    with comparing() as compare:
        compare(put(found[: COUNT * comm.size]), expected, "put")
    assert (found[COUNT * comm.size :] == 77).all()


@pytest.mark.parametrize("spec", ["disp", "list", "count", "datatype", "bytes"])
def test_get(comm, memory, spec):
    memory.array[...] = put(labels(comm.rank, memory.count))
    win, rank = memory.win, (comm.rank + 1) % comm.size
    recv, disp = put(np.zeros(5, "i8")), 11
    target = {
        "disp": disp,
        "list": [disp],
        "count": (disp, 5),
        "datatype": (disp, 5, MPI.INT64_T),
        "bytes": [disp, 40, MPI.BYTE],
    }[spec]
    win.Fence()
    win.Get(recv, rank, target)
    win.Fence()
    with comparing() as compare:
        compare(recv, labels(rank, memory.count)[disp : disp + 5], spec)


def test_requests(comm, memory):
    win, rank = memory.win, (comm.rank + 1) % comm.size
    data, back = put(labels(comm.rank, COUNT)), put(np.zeros(COUNT, "i8"))
    win.Lock_all()
    requests = [win.Rput(data, rank, 0), win.Raccumulate(put(np.ones(COUNT, "i8")), rank, 0)]
    requests[0].Wait()
    pyncclx.Request.Waitall(requests[1:])
    win.Flush(rank)
    old = put(np.zeros(COUNT, "i8"))
    win.Rget_accumulate(put(np.full(COUNT, 2)), old, rank, 0).Wait()
    win.Flush_all()
    request = win.Rget(back, rank, 0)
    request.Wait()
    assert not request
    win.Unlock_all()
    with comparing() as compare:
        compare(old, labels(comm.rank, COUNT) + 1, "Rget_accumulate")
        compare(back, labels(comm.rank, COUNT) + 3, "Rget")


def test_exclusive_lock(comm, memory):
    """Get, add, Put: nothing is lost."""
    memory.array[...] = 0
    memory.win.Fence()
    value = put(np.zeros(1, "i8"))
    for _ in range(5):
        memory.win.Lock(0)
        memory.win.Get(value, 0, 2)
        memory.win.Flush(0)
        value += 1
        memory.win.Put(value, 0, 2)
        memory.win.Unlock(0)
    MPI.Comm.Barrier(comm)
    assert_everywhere(comm, comm.rank or memory.read()[2] == 5 * comm.size)


def test_a_lock_is_held_when_lock_returns(comm, memory):
    """MPI may put it off until the first access, but device memory is not accessed through MPI."""
    win, found = memory.win, put(np.zeros(1, "i8"))
    if comm.rank == 0:
        win.Lock(0)
        MPI.Comm.Barrier(comm)
        time.sleep(0.1)
        memory.array[0] = 9
        synchronize()
        win.Unlock(0)
    else:
        MPI.Comm.Barrier(comm)
        win.Lock(0)
        win.Get(found, 0)
        win.Unlock(0)
    MPI.Comm.Barrier(comm)
    assert comm.rank == 0 or get(found)[0] == 9


def test_post_start_complete_wait(comm, memory):
    """To the right neighbour."""
    group = comm.Get_group()
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    to, source = group.Incl([right]), group.Incl([left])
    memory.array[...] = -1
    memory.win.Post(source)
    memory.win.Start(to)
    memory.win.Put(put(labels(comm.rank, COUNT)), right, 0)
    memory.win.Complete()
    memory.win.Wait()
    with comparing() as compare:
        compare(put(memory.read()[:COUNT]), labels(left, COUNT), "put")
    for each in (group, to, source):
        each.Free()


def test_kernels_store_to_peers(comm, memory):
    """`remote` gives an array for whatever the array library does."""
    right = (comm.rank + 1) % comm.size
    memory.win.Fence()
    memory.win.remote(right).view("i8")[:COUNT] = put(labels(comm.rank, COUNT))
    memory.win.Fence()
    with comparing() as compare:
        compare(put(memory.read()[:COUNT]), labels((comm.rank - 1) % comm.size, COUNT), "stored")


def test_allocate_on_the_device(comm):
    info = MPI.Info.Create({"pyncclx_memory": "device"})
    win = pyncclx.Win.Allocate(COUNT * 8, 8, info, comm)
    memory = win.tomemory().view("i8")
    memory[...] = comm.rank
    win.Fence()
    value = put(np.full(1, -1))
    win.Get(value, comm.size - 1, COUNT - 1)
    win.Fence()
    assert int(get(value)[0]) == comm.size - 1
    win.Free()
    info.Free()


def test_memory_on_one_rank_only(comm):
    """The others have none; on the host device nothing must be collective but MPI's own."""
    with comm.Dup() as dup:
        host = np.zeros(4, "i8") if dup.rank == 0 else None
        win = pyncclx.Win.Create(host, 8, comm=dup)
        win.Fence()
        if dup.rank == dup.size - 1:
            win.Put(np.arange(4), 0)
        win.Fence()
        if host is not None:
            assert (host == np.arange(4)).all()
        win.Free()


@host_only
def test_arrays_elsewhere_are_mpis(comm):
    """A NumPy array that is in no window, though there is one."""
    comm.Alloc(1)
    win = pyncclx.Win.Create(np.zeros(4), 8, comm=comm)
    with pytest.raises(NotSupported, match="device memory"):
        win.remote(0)
    win.Free()


def test_host_memory_is_mpis(comm):
    win = pyncclx.Win.Allocate(COUNT * 8, 8, comm=comm)
    assert isinstance(win, pyncclx.Win)
    with pytest.raises(NotSupported, match="device memory"):
        win.remote(0)
    win.Fence()
    win.Put(labels(comm.rank, COUNT), (comm.rank + 1) % comm.size)
    win.Fence()
    expected = labels((comm.rank - 1) % comm.size, COUNT)
    assert (np.frombuffer(win.tomemory(), "i8") == expected).all()
    win.Free()


def test_refusals(comm, memory):
    """Before anything moves, and the window goes on."""
    win, five, nine_bytes = memory.win, put(np.zeros(5, "i8")), put(np.zeros(9, "u1"))
    before = memory.read()
    refused = (
        (MPI.Exception, "target_rank is 99", lambda: win.Put(five, 99)),
        (MPI.Exception, "are not in the", lambda: win.Put(five, 0, memory.count)),
        (MPI.Exception, "are not in the", lambda: win.Get(five, 0, -1)),
        (MPI.Exception, "are not in the", lambda: win.Put(nine_bytes, comm.rank, (memory.count - 1, 9, MPI.BYTE))),
        (MPI.Exception, "origin has 40 bytes, target 24", lambda: win.Put(five, 0, (0, 3))),
        (ValueError, "expecting None, disp", lambda: win.Get(five, 0, "x")),
        (ValueError, "differ in datatype or count", lambda: win.Get_accumulate(five, five[:2], 0)),
        (NotSupported, "at most 8 atomically", lambda: win.Accumulate(put(np.zeros(1, "c16")), 0)),
    )
    for expected, text, call in refused:
        with raises_everywhere(comm, expected, match=text):
            call()
    with raises_everywhere(comm, MPI.Exception, match="BAND is not defined on float64") as raised:
        win.Accumulate(put(np.zeros(1)), 0, 0, MPI.BAND)
    assert raised.value.Get_error_class() == MPI.ERR_OP
    win.Put(five, MPI.PROC_NULL)
    synchronize()
    assert (memory.read() == before).all()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("comm", ["world"], indirect=True)
def test_not_all_memory_is_from_alloc(comm):
    array = comm.Alloc(4, "i8")
    with raises_everywhere(comm, NotSupported, match="memory of rank 0 is not from comm.Alloc"):
        pyncclx.Win.Create(array if comm.rank else xp.zeros(4), 8, comm=comm)


def test_after_free(comm):
    dup = comm.Dup()
    win = pyncclx.Win.Create(dup.Alloc(4, "i8"), 8, comm=dup)
    dup.Free()
    with pytest.raises(MPI.Exception, match=r"has been freed.*free the window first") as raised:
        win.Put(put(np.zeros(1, "i8")), 0)
    assert raised.value.Get_error_class() == MPI.ERR_WIN
    win.Free()


def test_allocate_shared_on_the_device(comm):
    info = MPI.Info.Create({"pyncclx_memory": "device"})
    win = pyncclx.Win.Allocate_shared(COUNT * 8 * (comm.rank > 0), 8, info, comm)
    info.Free()
    win.Fence()
    first = 1 if comm.size > 1 else 0
    for rank in (*range(comm.size), MPI.PROC_NULL):
        memory, unit = win.Shared_query(rank)
        assert unit == 8
        assert memory.nbytes == (0 if rank == 0 or comm.size == 1 else COUNT * 8)
    if first and comm.rank == 0:
        win.Shared_query(first)[0].view("i8")[...] = put(labels(0, COUNT))
        synchronize()
    win.Fence()
    found = get(win.tomemory()).view("i8")
    win.Free()
    assert comm.rank != first or not first or (found == labels(0, COUNT)).all()
