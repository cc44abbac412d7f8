"""One-sided communication on device arrays: every operation against mpi4py's, or arithmetic that leaves no choice."""

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from arrays import get, gpu_only, host_only, put, synchronize, xp
from everywhere import assert_everywhere, raises_everywhere
from pyncclx import NotSupported, PeerTimeout
from reference import comparing, labels

COUNT = 37


class Memory:
    """A window over a part of an array of `comm.Alloc`, longer on higher ranks, and what the rest must stay."""

    def __init__(self, comm, dtype="i8", unit=None):
        self.begin, self.count = 3, COUNT * comm.size + comm.rank + 4
        self.whole = comm.Alloc(self.count + 6, dtype)
        self.whole[...] = 77
        self.array = self.whole[self.begin : self.begin + self.count]
        self.win = pyncclx.Win.Create(self.array, unit or self.whole.dtype.itemsize, comm=comm)

    def read(self):
        whole = get(self.whole)
        edges = np.delete(whole, np.s_[self.begin : self.begin + self.count])
        assert (edges == np.array(77, whole.dtype)).all(), "written outside of the window"
        return whole[self.begin : self.begin + self.count].copy()


@pytest.fixture
def memory(comm):
    made = Memory(comm)
    yield made
    made.win.Free()


def test_what_it_is(comm, memory):
    win = memory.win
    assert isinstance(win, MPI.Win)
    _, size, unit = win.attrs
    assert (size, unit) == (memory.array.nbytes, 8)
    assert win.Get_attr(MPI.WIN_SIZE) == size
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


SUMS = ("int8", "uint16", "int32", "uint64", "float16", "float32", "float64", "complex64")


@pytest.mark.parametrize("name", SUMS)
def test_accumulate_on_one_rank(comm, name):
    """All ranks at once into the same elements: small integers, whose sums are exact in every order."""
    memory = Memory(comm, name)
    memory.array[...] = 1
    root = comm.size - 1
    values = (np.arange(COUNT) % 5 + comm.rank % 3).astype(name)
    memory.win.Fence()
    for _ in range(3):
        memory.win.Accumulate(put(values), root, 1)
    memory.win.Fence()
    expected = np.ones(memory.count, name)
    if comm.rank == root:
        expected[1 : 1 + COUNT] += sum(3 * (np.arange(COUNT) % 5 + rank % 3) for rank in range(comm.size)).astype(name)
    found = memory.read()
    memory.win.Free()
    assert (found == expected).all(), f"elements {np.flatnonzero(found != expected)[:5]}"


OPS = ("SUM", "PROD", "MIN", "MAX", "LAND", "LOR", "LXOR", "BAND", "BOR", "BXOR", "REPLACE", "NO_OP")


@pytest.mark.parametrize("name", OPS)
def test_operators_as_mpi(comm, name):
    """One origin, its right neighbour; mpi4py does the same on host memory."""
    op, rank = getattr(MPI, name), (comm.rank + 1) % comm.size
    memory = Memory(comm, "i4")
    start = (np.arange(memory.count) * 7 % 11 - 2).astype("i4")
    host = start.copy()
    plain = MPI.Win.Create(host, 4, comm=MPI.Intracomm(comm))
    memory.array[...] = put(start)
    values = (np.arange(COUNT) * 5 % 7 - 1 + comm.rank).astype("i4")
    results = put(np.zeros(COUNT, "i4")), np.zeros(COUNT, "i4")
    memory.win.Fence()
    plain.Fence()
    memory.win.Get_accumulate(put(values), results[0], rank, 2, op)
    plain.Get_accumulate(values, results[1], rank, 2, op)
    memory.win.Fence()
    plain.Fence()
    found = memory.read()
    memory.win.Free()
    plain.Free()
    with comparing() as compare:
        compare(put(found), host, f"{name}: target")
        compare(results[0], results[1], f"{name}: result")


def test_counter(comm, memory):
    """Everybody counts on rank 0: each number is given once."""
    memory.array[...] = 0
    memory.win.Fence()
    one, numbers = put(np.ones(1, "i8")), put(np.full(20, -1))
    memory.win.Lock(0, MPI.LOCK_SHARED)
    for i in range(20):
        memory.win.Fetch_and_op(one, numbers[i : i + 1], 0, 4)
    memory.win.Unlock(0)
    every = np.concatenate(MPI.Comm.allgather(comm, get(numbers)))
    assert sorted(every) == list(range(20 * comm.size))


@pytest.mark.parametrize("name", ["uint8", "int16", "int32", "float64"])
def test_compare_and_swap(comm, name):
    """One rank takes the place, all others see who has it. Neighbours in the same word stay as they are."""
    memory = Memory(comm, name)
    memory.array[...] = 9
    mine, free, result = put(np.full(1, comm.rank + 1, name)), put(np.full(1, 9, name)), put(np.zeros(1, name))
    memory.win.Fence()
    memory.win.Lock(0, MPI.LOCK_SHARED)
    memory.win.Compare_and_swap(mine, free, result, 0, 3)
    memory.win.Unlock(0)
    memory.win.Fence()
    found, seen = memory.read(), MPI.Comm.allgather(comm, get(result)[0])
    holder = MPI.Comm.bcast(comm, found[3])
    memory.win.Free()
    assert [rank for rank in range(comm.size) if seen[rank] == 9] == [int(holder) - 1]
    assert all(value in (9, holder) for value in seen)
    assert (np.delete(found, 3) == 9).all()


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


def test_counter_on_one_rank(comm):
    """The others allocate nothing."""
    info = MPI.Info.Create({"pyncclx_memory": "device"})
    win = pyncclx.Win.Allocate(0 if comm.rank else 4, 4, info, comm)
    info.Free()
    number = put(np.full(1, -1, "i4"))
    win.Fence()
    win.Fetch_and_op(put(np.ones(1, "i4")), number, 0)
    win.Fence()
    assert sorted(MPI.Comm.allgather(comm, int(get(number)[0]))) == list(range(comm.size))
    win.Free()


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
    with pytest.raises(NotSupported, match="of host memory"):
        win.remote(0)
    win.Free()


def test_host_memory_is_mpis(comm):
    win = pyncclx.Win.Allocate(COUNT * 8, 8, comm=comm)
    assert isinstance(win, pyncclx.Win)
    with pytest.raises(NotSupported, match="of host memory"):
        win.remote(0)
    win.Fence()
    win.Put(labels(comm.rank, COUNT), (comm.rank + 1) % comm.size)
    win.Fence()
    expected = labels((comm.rank - 1) % comm.size, COUNT)
    assert (np.frombuffer(win.tomemory(), "i8") == expected).all()
    win.Free()


def test_refusals(comm, memory):
    """Before anything moves, and the window goes on."""
    win, five = memory.win, put(np.zeros(5, "i8"))
    before = memory.read()
    refused = (
        (MPI.Exception, "target_rank is 99", lambda: win.Put(five, 99)),
        (MPI.Exception, "are not in the", lambda: win.Put(five, 0, memory.count)),
        (MPI.Exception, "are not in the", lambda: win.Get(five, 0, -1)),
        (MPI.Exception, "origin has 40 bytes, target 24", lambda: win.Put(five, 0, (0, 3))),
        (TypeError, "expecting None, disp", lambda: win.Get(five, 0, "x")),
        (ValueError, "differ in datatype or count", lambda: win.Get_accumulate(five, five[:2], 0)),
        (NotSupported, "at most 8 atomically", lambda: win.Accumulate(put(np.zeros(1, "c16")), 0)),
        (MPI.Exception, "MPI_ERR_OP", lambda: win.Accumulate(put(np.zeros(1)), 0, 0, MPI.BAND)),
    )
    for expected, text, call in refused:
        with raises_everywhere(comm, expected, match=text):
            call()
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
    with pytest.raises(MPI.Exception, match="has been freed"):
        win.Put(put(np.zeros(1, "i8")), 0)
    win.Free()


@pytest.mark.parametrize("nbytes", [0, 8, 4003, 70_001])
def test_put_signal_and_wait_signal(comm, nbytes):
    """Around the ring, three times and then all at once: what has been waited for is there."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    inbox = comm.Alloc(max(4 * nbytes, 1), "u1")
    win = pyncclx.Win.Create(inbox, 1, comm=comm)
    sends = [put(labels(comm.rank, nbytes, call).astype("u1")) for call in range(4)]
    taken = []
    for call in range(4):
        win.Put_signal(sends[call], right, call * nbytes, signal=63)
        if call < 2:
            win.Wait_signal(63)
            taken.append(inbox[call * nbytes :][:nbytes].copy())
    win.Wait_signal(63, 2)
    taken += [inbox[call * nbytes :][:nbytes].copy() for call in (2, 3)]
    win.Wait_signal(63, 0)
    synchronize()
    comm.synchronize()
    win.Free()
    with comparing() as compare:
        for call, found in enumerate(taken):
            compare(found, labels(left, nbytes, call).astype("u1"), f"put {call}")


@pytest.mark.parametrize("comm", ["world"], indirect=True)
def test_put_signal_of_a_long_message(comm):
    """By a copy engine."""
    right, left, count = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size, (2 << 20) + 1
    win = pyncclx.Win.Create(comm.Alloc(count, "i8"), 8, comm=comm)
    win.Put_signal(put(labels(comm.rank, count)), right)
    win.Wait_signal()
    found = get(win.tomemory()).view("i8")
    win.Free()
    with comparing() as compare:
        compare(put(found), labels(left, count), "put")


def test_signals_count_what_all_ranks_put(comm, memory):
    """Everybody puts to rank 0, each to its own place and one signal."""
    win = memory.win
    win.Put_signal(put(labels(comm.rank, COUNT)), 0, comm.rank * COUNT, signal=5)
    if comm.rank == 0:
        win.Wait_signal(5, comm.size)
        expected = np.concatenate([labels(rank, COUNT) for rank in range(comm.size)])
        found = memory.read()[: COUNT * comm.size]
    with comparing() as compare:
        if comm.rank == 0:
            compare(put(found), expected, "put")


@gpu_only
def test_signals_in_a_graph(comm, memory):
    """A captured ring, replayed with other data."""
    win, right = memory.win, (comm.rank + 1) % comm.size
    send, stream, seen = put(np.zeros(COUNT, "i8")), xp.cuda.Stream(non_blocking=True), []
    synchronize()
    with stream:
        stream.begin_capture()
        win.Put_signal(send, right, 0)
        win.Wait_signal()
        graph = stream.end_capture()
        for call in range(50):
            send[...] = xp.asarray(labels(comm.rank, COUNT, call))
            graph.launch(stream)
            seen.append(memory.array[:COUNT].copy())
            win.Put_signal(send[:0], (comm.rank - 1) % comm.size, signal=1)  # what is here has been read
            win.Wait_signal(1)
        stream.synchronize()
    with comparing() as compare:
        for call, found in enumerate(seen):
            compare(found, labels((comm.rank - 1) % comm.size, COUNT, call), f"replay {call}")


def test_signals_refuse(comm, memory):
    win, one = memory.win, put(np.zeros(1, "i8"))
    for call in (lambda: win.Put_signal(one, 0, 0, 64), lambda: win.Wait_signal(-1), lambda: win.Wait_signal(0, -2)):
        with raises_everywhere(comm, ValueError, match="signal: "):
            call()
    plain = pyncclx.Win.Allocate(8, 8, comm=comm)
    with raises_everywhere(comm, NotSupported, match="of host memory"):
        plain.Wait_signal()
    plain.Free()


def test_signal_that_nobody_puts(comm, monkeypatch):
    """The wait ends, and says what it was for."""
    monkeypatch.setenv("PYNCCLX_TIMEOUT", "0.5")
    with comm.Dup() as dup:
        win = pyncclx.Win.Create(dup.Alloc(4, "i8"), 8, comm=dup)
        win.Wait_signal(7)
        synchronize()
        with raises_everywhere(comm, PeerTimeout, match=r"Wait_signal \(signal 7\)"):
            win.Wait_signal(7)
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
