"""One-sided operations with derived datatypes: elements of all lengths, order, refusals, dynamic windows."""

import time
import weakref

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx import NotSupported, backends
from support.arrays import get, host_only, put
from support.everywhere import raises_everywhere
from support.window_memory import Memory, opened

memory = pytest.fixture(opened)
on_one = pytest.mark.parametrize("comm", ["reversed"] if MPI.COMM_WORLD.size > 1 else ["dup"], indirect=True)
INT64 = MPI.INT64_T
ELEMENTS = {
    "int8": MPI.INT8_T,
    "uint16": MPI.UINT16_T,
    "int32": MPI.INT32_T,
    "uint64": MPI.UINT64_T,
    "float32": MPI.FLOAT,
    "float64": MPI.DOUBLE,
    "complex64": MPI.C_FLOAT_COMPLEX,
}


@pytest.fixture
def typed():
    """Commits datatypes, and frees them at the end."""
    made = []

    def commit(datatype):
        made.append(datatype.Commit())
        return datatype

    yield commit
    for each in made:
        each.Free()


@on_one
@pytest.mark.parametrize("name", ELEMENTS)
def test_all_ranks_add_to_the_same_elements(comm, typed, name):
    """Every third element of one rank, from every second one of each; small integers, whose sums are exact."""
    memory, root = Memory(comm, name), comm.size - 1
    memory.array[...] = 1
    own, theirs = typed(ELEMENTS[name].Create_vector(9, 1, 2)), typed(ELEMENTS[name].Create_vector(9, 1, 3))
    values = (np.arange(18) % 5 + comm.rank).astype(name)
    memory.win.Fence()
    for _ in range(3):
        memory.win.Accumulate([put(values), 1, own], root, [1, 1, theirs])
    memory.win.Fence()
    found, expected = memory.read(), np.ones(memory.count, name)
    memory.win.Free()
    if comm.rank == root:
        expected[1:28:3] += sum(3 * (np.arange(0, 18, 2) % 5 + rank) for rank in range(comm.size)).astype(name)
    assert (found == expected).all(), f"elements {np.flatnonzero(found != expected)[:5]}"


@on_one
def test_numbers_are_given_once(comm, memory, typed):
    """All ranks count in the same scattered elements at once; the numbers that they get are all different."""
    own, theirs = typed(INT64.Create_indexed_block(1, [4, 0, 2])), typed(INT64.Create_vector(3, 1, 5))
    one, rounds = put(np.ones(5, "i8")), 20
    numbers = [put(np.full(5, -1)) for _ in range(rounds)]
    memory.array[...] = 0
    memory.win.Fence()
    for each in numbers:
        memory.win.Get_accumulate([one, 1, own], [each, 1, own], 0, [2, 1, theirs])
    memory.win.Fence()
    every = np.concatenate(MPI.Comm.allgather(comm, np.array([get(each)[[4, 0, 2]] for each in numbers])))
    assert all(sorted(place) == list(range(rounds * comm.size)) for place in every.T)
    assert all((get(each)[[1, 3]] == -1).all() for each in numbers)


@host_only
@on_one
def test_a_ranks_changes_take_effect_in_order(comm, memory, typed):
    """Whatever stream each is on, and though a packed copy is between."""
    column, win, own = typed(INT64.Create_vector(3, 1, 2)), memory.win, comm.rank
    win.Lock(own)
    try:
        for value in (1, 2):
            comm.stream = backends.select().new_stream()
            comm.stream.enqueue(lambda pause=0.1 if value == 1 else 0.0: time.sleep(pause))
            win.Accumulate([np.full(6, value), 1, column], own, [0, 1, column], MPI.REPLACE)
        win.Unlock(own)
    finally:
        comm.stream = None
    assert memory.read()[:5:2].tolist() == [2, 2, 2]


@host_only
@on_one
def test_packed_copies_last_until_the_stream_has_used_them(comm, memory, typed, monkeypatch):
    column, row, win = typed(INT64.Create_vector(12, 1, 2)), typed(INT64.Create_vector(12, 1, 3)), memory.win
    device, copies = backends.select(), []

    def allocate(*arguments, allocate_temporary=device.allocate_temporary):
        copy = allocate_temporary(*arguments)
        copies.append(weakref.ref(copy))
        return copy

    monkeypatch.setattr(device, "allocate_temporary", allocate)
    memory.array[...] = -5
    send, back, right = np.arange(24), np.full(24, -7), (comm.rank + 1) % comm.size
    win.Fence()
    comm.stream = device.new_stream()
    try:
        comm.stream.enqueue(lambda: time.sleep(0.1))
        win.Put([send, 1, column], right, [0, 1, row])
        win.Get([back, 1, column], right, [1, 1, row])
        are_kept = [copy() is not None for copy in copies]
        win.Fence()
    finally:
        comm.stream = None
    assert are_kept == [True, True]
    assert (memory.read()[:36:3] == np.arange(0, 24, 2)).all()
    assert (back == np.where(np.arange(24) % 2, -7, -5)).all()


@on_one
def test_refusals(comm, memory, typed):
    """Before anything moves: the classes of errors are those of MPI."""
    win, before, x = memory.win, memory.read(), put(np.zeros(8, "i8"))
    column, back = typed(INT64.Create_vector(2, 1, 2)), typed(INT64.Create_vector(2, 1, -2))
    floats, bytewise = typed(MPI.DOUBLE.Create_vector(2, 1, 2)), typed(INT64.Create_hvector(2, 1, 12))
    for error_class, call in (
        (MPI.ERR_TRUNCATE, lambda: win.Put([x, 1, column], 0, [0, 3, INT64])),
        (MPI.ERR_RMA_RANGE, lambda: win.Put([x, 1, column], comm.rank, [memory.count - 2, 1, column])),
        (MPI.ERR_RMA_RANGE, lambda: win.Get(x[:2], comm.rank, [1, 1, back])),
        (MPI.ERR_RMA_RANGE, lambda: win.Accumulate([x, 2, column], comm.rank, [memory.count - 5, 2, column])),
        (MPI.ERR_DISP, lambda: win.Put([x, 1, column], 0, [-1, 1, column])),
        (MPI.ERR_COUNT, lambda: win.Put([x, 1, column], 0, [0, -1, column])),
        (MPI.ERR_RANK, lambda: win.Put([x, 1, column], 99)),
        (MPI.ERR_ARG, lambda: win.Accumulate([x, 1, column], 0, [0, 1, floats])),
        (MPI.ERR_TYPE, lambda: win.Put(x[:2], 0, [0, 1, INT64.Create_vector(2, 1, 2)])),
        (MPI.ERR_OP, lambda: win.Accumulate([put(np.zeros(8)), 1, floats], 0, [0, 1, floats], MPI.BAND)),
    ):
        with raises_everywhere(comm, MPI.Exception) as raised:
            call()
        assert raised.value.Get_error_class() == error_class
    for text, call in (
        ("no multiple of the element's length", lambda: win.Accumulate(x[:2], 0, [0, 1, bytewise])),
        ("derived", lambda: win.Fetch_and_op([x, 1, column], [x, 1, column], 0)),
        ("derived", lambda: win.Put_signal(x[:2], 0, [0, 1, column])),
    ):
        with raises_everywhere(comm, NotSupported if "derived" not in text else Exception, match=text):
            call()
    with raises_everywhere(comm, ValueError, match="differ in datatype or count"):
        win.Get_accumulate([x, 1, column], [x, 2, column], 0)
    win.Put([x, 1, column], MPI.PROC_NULL, [0, 1, column])
    assert (memory.read() == before).all()


@on_one
@pytest.mark.parametrize("absolute", [False, True])
def test_dynamic_windows(comm, typed, absolute):
    """A datatype's displacements are from an address, or are addresses themselves."""
    win, array, right = pyncclx.Win.Create_dynamic(comm=comm), comm.Alloc(20, "i8"), (comm.rank + 1) % comm.size
    array[...] = 77
    win.Attach(array)
    own = array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr
    there = MPI.Comm.allgather(comm, own)[right]
    start = there if absolute else 0
    scattered = typed(INT64.Create_hindexed([1, 2], [start + 120, start + 16]))
    win.Fence()
    win.Put(put(np.arange(3) + comm.rank), right, [0 if absolute else there, 1, scattered])
    win.Fence()
    win.Accumulate(put(np.ones(3, "i8")), right, [0 if absolute else there, 1, scattered])
    win.Fence()
    expected, left = np.full(20, 77), (comm.rank - 1) % comm.size
    expected[[15, 2, 3]] = np.arange(3) + left + 1
    found = get(array)
    win.Detach(array)
    win.Free()
    assert (found == expected).all()
