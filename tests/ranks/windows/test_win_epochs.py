"""Epochs of windows of device memory: what ends them, what they wait for, and what is left when a call raises."""

import os
import time

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx import backends
from support.arrays import get, host_only, put
from support.everywhere import assert_everywhere, raises_everywhere
from support.reference import labels
from support.window_memory import COUNT, opened

memory = pytest.fixture(opened)
on_one = pytest.mark.parametrize("comm", ["world"], indirect=True)
HELD = 0.05  # seconds that a shared lock is kept


@pytest.fixture
def impatient(monkeypatch):
    """A rank that waits for a lock raises soon; kernels keep the time limit that they were launched with."""
    monkeypatch.setenv("PYNCCLX_TIMEOUT", "4")


@pytest.fixture
def streams(comm):
    """Makes streams of the host device for a communicator."""

    def chosen():
        comm.stream = backends.select().new_stream()
        return comm.stream

    yield chosen
    comm.stream = None


def unlocked(win, group, put_it):
    win.Lock(win.group_size - 1)
    put_it()
    win.Unlock(win.group_size - 1)


def unlocked_all(win, group, put_it):
    win.Lock_all()
    put_it()
    win.Flush(win.group_size - 1)
    win.Flush_local_all()
    win.Sync()
    win.Unlock_all()


def completed(win, group, put_it):
    win.Start(group)
    put_it()
    win.Complete()


@on_one
@pytest.mark.ranks(2)
def test_epochs_whose_ranks_are_not_checked(comm, memory, impatient):
    """Each rank has posted before the other starts, so MODE_NOCHECK is right, and later epochs are as the first one."""
    group, last = comm.Get_group(), comm.size - 1
    others, target = group.Excl([last]), group.Incl([last])
    for number, assertion in enumerate((0, MPI.MODE_NOCHECK, MPI.MODE_NOCHECK, 0)):
        sent = put(labels(comm.rank, COUNT, number))
        if comm.rank == last:
            memory.win.Post(others, assertion)
            MPI.Comm.Barrier(comm)
            memory.win.Wait()
        else:
            MPI.Comm.Barrier(comm)
            memory.win.Start(target, assertion)
            memory.win.Put(sent, last, comm.rank * COUNT)
            memory.win.Complete()
        MPI.Comm.Barrier(comm)
        expected = np.concatenate([labels(rank, COUNT, number) for rank in range(last)])
        is_right = comm.rank != last or np.array_equal(memory.read()[: last * COUNT], expected)
        assert_everywhere(comm, is_right, f"puts of epoch {number}")


@on_one
@pytest.mark.ranks(2)
@pytest.mark.parametrize("epoch", [unlocked, unlocked_all, completed])
def test_an_epoch_ends_though_a_collective_goes_on(comm, memory, epoch):
    """The last rank begins its part of the collective only when it has heard that the others' epochs have ended."""
    last, group = comm.size - 1, comm.Get_group()
    others, target = group.Excl([last]), group.Incl([last])
    x, total, sent = put(labels(comm.rank, 5)), put(np.zeros(5, "i8")), put(labels(comm.rank, COUNT))
    with comm.Dup() as beside:
        beside.Iallreduce(x, total).Wait()  # the first call of a kind is collective on the host
        beside.synchronize()
        MPI.Comm.Barrier(comm)
        if comm.rank == last:
            if epoch is completed:
                memory.win.Post(others)
                memory.win.Wait()
            for rank in range(last):
                MPI.Comm.recv(comm, source=rank)
            request = beside.Iallreduce(x, total)
        else:
            request = beside.Iallreduce(x, total)
            epoch(memory.win, target, lambda: memory.win.Put(sent, last, comm.rank * COUNT))
            MPI.Comm.send(comm, "ended", last)
        request.Wait()
        beside.synchronize()
    memory.win.Fence()
    found = memory.read()[: last * COUNT].reshape(last, COUNT)
    wrong = comm.rank == last and [rank for rank in range(last) if (found[rank] != labels(rank, COUNT)).any()]
    assert_everywhere(comm, not wrong, f"puts of {wrong}")
    assert (get(total) == sum(labels(rank, 5) for rank in range(comm.size))).all()
    for each in (others, target, group):
        each.Free()


@host_only
@on_one
@pytest.mark.parametrize("operation", ["Accumulate", "Get_accumulate", "Fetch_and_op", "Compare_and_swap"])
def test_changes_of_a_rank_come_one_after_the_other(comm, memory, streams, operation):
    """MPI orders a rank's atomic operations on one element, whatever stream each is on."""
    win, own = memory.win, comm.rank
    one, two, old = np.full(1, 1), np.full(1, 2), np.zeros(1, "i8")
    win.Lock(own)
    streams().enqueue(lambda: time.sleep(0.1))
    win.Accumulate(one, own, 0, MPI.REPLACE)
    streams()
    if operation == "Accumulate":
        win.Accumulate(two, own, 0, MPI.REPLACE)
    elif operation == "Compare_and_swap":
        win.Compare_and_swap(two, one, old, own, 0)
    else:
        getattr(win, operation)(two, old, own, 0, op=MPI.REPLACE)
    win.Unlock(own)
    assert memory.read()[0] == 2
    assert operation == "Accumulate" or old[0] == 1


@on_one
@pytest.mark.ranks(3)
def test_shared_locks_that_overlap_let_an_exclusive_one_in(comm, memory, impatient):
    """Ranks 0 and 1 keep a shared lock until the other one has it, but not for long: who came first has its turn."""
    win, me, last, problem = memory.win, comm.rank, comm.size - 1, ""
    host = MPI.Win.Allocate_shared(24 * (me == 0), 8, comm=MPI.Intracomm(comm))
    words = np.frombuffer(host.Shared_query(0)[0], "i8")  # how often ranks 0 and 1 have had the lock, and the end
    if me == 0:
        words[:] = 0
    MPI.Comm.Barrier(comm)
    if me == last:
        try:
            for value in range(3):
                while not words[:2].all():
                    time.sleep(0.001)
                win.Lock(last)
                win.Put(put(np.full(1, value)), last, 1)
                win.Unlock(last)
        except pyncclx.PeerTimeout as error:
            problem = str(error)
        words[2] = 1
    while me < 2 and not words[2]:
        win.Lock(last, MPI.LOCK_SHARED)
        words[me] += 1
        before, end = words[1 - me], time.monotonic() + HELD
        while words[1 - me] == before and time.monotonic() < end:
            time.sleep(0.001)
        win.Unlock(last)
    assert_everywhere(comm, not problem, problem)
    host.Free()
    assert me != last or memory.read()[1] == 2


REFUSED = {
    "lock type": lambda win: win.Lock(0, 77),
    "assertion": lambda win: win.Lock(0, MPI.LOCK_EXCLUSIVE, 1 << 20),
    "assertion for all": lambda win: win.Lock_all(1 << 20),
    "rank": lambda win: win.Lock(win.group_size),
}


@on_one
@pytest.mark.parametrize("what", REFUSED)
def test_a_lock_that_mpi_refuses_is_not_kept(comm, memory, impatient, what):
    win = memory.win
    with raises_everywhere(comm, MPI.Exception):
        REFUSED[what](win)
    for rank in range(comm.size):
        win.Lock(rank)
        win.Accumulate(put(np.ones(1, "i8")), rank, 0)
        win.Unlock(rank)
    MPI.Comm.Barrier(comm)
    assert memory.read()[0] == 77 + comm.size


@on_one
def test_a_second_lock_leaves_the_first(comm, memory, impatient):
    """MPI refuses it; get, add and put under the first stay one step."""
    win, value = memory.win, put(np.zeros(1, "i8"))
    for _ in range(3):
        win.Lock(0)
        for again in (win.Lock, win.Lock_all):
            with pytest.raises(MPI.Exception):
                again(*[0] * (again == win.Lock))
        win.Get(value, 0, 2)
        win.Flush(0)
        time.sleep(0.002)
        value += 1
        win.Put(value, 0, 2)
        win.Unlock(0)
    MPI.Comm.Barrier(comm)
    assert comm.rank or memory.read()[2] == 77 + 3 * comm.size


@on_one
@pytest.mark.parametrize("all_ranks", [False, True])
def test_a_lock_times_out(comm, memory, monkeypatch, all_ranks):
    """What it has got so far of several locks is released."""
    win, last = memory.win, comm.size - 1
    if comm.rank == last:
        win.Lock(last)
    MPI.Comm.Barrier(comm)
    if comm.rank != last:
        monkeypatch.setenv("PYNCCLX_TIMEOUT", "0.2")
        with pytest.raises(pyncclx.PeerTimeout, match=f"timed out waiting for rank {last}"):
            win.Lock_all() if all_ranks else win.Lock(last)
        monkeypatch.undo()
    MPI.Comm.Barrier(comm)
    if comm.rank == last:
        win.Unlock(last)
        win.Lock(0)
        win.Unlock(0)
    MPI.Comm.Barrier(comm)
    win.Lock_all()
    win.Unlock_all()


@host_only
@on_one
@pytest.mark.timeout(60)
@pytest.mark.parametrize("end", ["Unlock", "Unlock_all", "Complete", "Fence", "Free"])
def test_an_error_of_the_device_ends_the_epoch_all_the_same(comm, memory, streams, end):
    """Other ranks wait for its end in MPI, where no wait has a time limit."""
    win, last = memory.win, comm.size - 1
    group = comm.Get_group()
    begin = {"Unlock": lambda: win.Lock(0), "Unlock_all": win.Lock_all, "Complete": lambda: win.Start(group)}
    if end == "Complete":
        win.Post(group)
    begin.get(end, win.Fence)()
    if comm.rank == last:
        streams().enqueue(lambda: 1 / 0)
    problem = ""
    try:
        getattr(win, end)(*[0] * (end == "Unlock"))
    except ZeroDivisionError as error:
        problem = str(error)
    if end == "Complete":
        win.Wait()
    group.Free()
    if end != "Free":
        for rank in range(comm.size):
            win.Lock(rank)
            win.Unlock(rank)
    expected = comm.rank == last or end == "Fence"
    assert_everywhere(comm, bool(problem) == expected, f"raised {problem!r}")
    if end == "Free":
        memory.win = pyncclx.Win.Create(memory.array, 8, comm=comm)


@on_one
@pytest.mark.ranks(2)
def test_free_though_a_rank_does_not_come(comm, monkeypatch):
    """What a rank has for the window is released all the same; MPI keeps its word."""
    win, last = pyncclx.Win.Create(comm.Alloc(4, "i8"), 8, comm=comm), comm.size - 1
    MPI.Comm.Barrier(comm)
    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setenv("PYNCCLX_TIMEOUT", "0.5")
    for turn in range(2):
        if (comm.rank == last) == turn:
            win.Free()
        MPI.Comm.Barrier(comm)
    assert len(os.listdir("/proc/self/fd")) < before


@on_one
@pytest.mark.parametrize("call", ["Lock", "Lock_all"])
def test_a_lock_that_another_thread_waits_for(comm, memory, monkeypatch, call):
    """MPI itself is not asked: it would wait, and an Unlock would give up the other thread's claim."""
    win, released = memory.win, []
    monkeypatch.setattr(win._state.locks, "acquire", lambda rank, **options: rank != comm.rank)
    monkeypatch.setattr(win._state.locks, "release", released.append)
    with raises_everywhere(comm, MPI.Exception, match="another of its threads") as raised:
        getattr(win, call)(*([comm.rank] if call == "Lock" else []))
    assert_everywhere(comm, raised.value.Get_error_class() == MPI.ERR_RMA_SYNC)
    assert_everywhere(comm, sorted(released) == ([] if call == "Lock" else list(range(comm.rank))))
