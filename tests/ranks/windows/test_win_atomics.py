"""Atomic one-sided operations on device arrays: against mpi4py's, or sums that do not depend on the order."""

from contextlib import nullcontext

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from support.arrays import get, put
from support.reference import comparing
from support.window_memory import COUNT, Memory, opened

memory = pytest.fixture(opened)
on_one = pytest.mark.parametrize("comm", ["reversed"] if MPI.COMM_WORLD.size > 1 else ["dup"], indirect=True)

SUMS = ("int8", "uint16", "int32", "uint64", "float16", "float32", "float64", "complex64")


@on_one
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


@on_one
@pytest.mark.parametrize("origin", ["None", "BOTTOM", "empty"])
def test_no_op_does_not_look_at_the_origin(comm, origin):
    origin = {"None": [None, 0, MPI.INT], "BOTTOM": [MPI.BOTTOM, 2, MPI.INT], "empty": np.empty(0, "i4")}[origin]
    memory, result = Memory(comm, "i4"), put(np.zeros(2, "i4"))
    memory.array[...] = put(np.arange(memory.count, dtype="i4") + 100 * comm.rank)
    target = (comm.rank + 1) % comm.size
    memory.win.Fence()
    memory.win.Get_accumulate(origin, result, target, 3, MPI.NO_OP)
    memory.win.Fence()
    found = get(result).tolist()
    memory.win.Free()
    assert found == [100 * target + 3, 100 * target + 4]


OPS = ("SUM", "PROD", "MIN", "MAX", "LAND", "LOR", "LXOR", "BAND", "BOR", "BXOR", "REPLACE", "NO_OP")


@on_one
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
    """All ranks count on rank 0: each number is given once."""
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


@pytest.mark.parametrize("nothing", [None, bytearray(), "empty", "allocated"])
def test_counter_on_one_rank_by_create(comm, nothing):
    """The others expose nothing."""
    memory = comm.Alloc(0 if comm.rank else 3, "i4")
    if comm.rank and nothing != "allocated":
        memory = put(np.empty(0, "i4")) if nothing == "empty" else nothing
    win, number = pyncclx.Win.Create(memory, 4, comm=comm), put(np.full(1, -1, "i4"))
    win.Fence()
    win.Fetch_and_op(put(np.ones(1, "i4")), number, 0, 2)
    win.Fence()
    found = MPI.Comm.allgather(comm, int(get(number)[0]))
    assert sorted(found) == list(range(comm.size)), f"values that the ranks fetched: {found}"
    refused = nullcontext() if comm.size == 1 else pytest.raises(MPI.Exception)
    with refused as raised:
        win.Put(put(np.ones(1, "i4")), comm.size - 1)
    assert raised is None or raised.value.Get_error_class() == MPI.ERR_RMA_RANGE
    win.Fence()
    assert comm.rank or int(get(memory)[2]) == comm.size, f"rank {comm.rank}: {get(memory)}"
    win.Free()
