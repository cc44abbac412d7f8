"""Arguments of one-sided operations that MPI refuses: the exception is that of mpi4py on host memory."""

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from support.arrays import HOST, put
from support.everywhere import assert_everywhere, raises_everywhere
from support.window_memory import Memory, opened

memory = pytest.fixture(opened)
comms = pytest.mark.parametrize("comm", ["reversed"] if MPI.COMM_WORLD.size > 1 else ["dup"], indirect=True)


def a(count, dtype="i8"):
    return np.zeros(count, dtype)


# mpi4py refuses them itself.
BY_MPI4PY = {
    "Fetch_and_op of two": (lambda w, p: w.Fetch_and_op(p(a(2)), p(a(2)), 0), ValueError, "origin .*single"),
    "Fetch_and_op of none": (lambda w, p: w.Fetch_and_op(p(a(0)), p(a(0)), 0), ValueError, "origin .*single"),
    "Fetch_and_op to two": (lambda w, p: w.Fetch_and_op(p(a(1)), p(a(2)), 0), ValueError, "result .*single"),
    "NO_OP of two": (lambda w, p: w.Fetch_and_op(p(a(2)), p(a(1)), 0, 0, MPI.NO_OP), ValueError, "origin .*single"),
    "two before the rank": (lambda w, p: w.Fetch_and_op(p(a(2)), p(a(2)), 99), ValueError, "origin .*single"),
    "other result": (lambda w, p: w.Fetch_and_op(p(a(1)), p(a(1, "f8")), 0), ValueError, "datatype"),
    "no result": (lambda w, p: w.Fetch_and_op(p(a(1)), None, 0), TypeError, "result is None"),
    "no result of more": (lambda w, p: w.Get_accumulate(p(a(2)), None, 0), TypeError, "result is None"),
    "swap of two": (lambda w, p: w.Compare_and_swap(p(a(2)), p(a(1)), p(a(1)), 0), ValueError, "origin .*single"),
    "compare two": (lambda w, p: w.Compare_and_swap(p(a(1)), p(a(2)), p(a(1)), 0), ValueError, "compare .*single"),
    "two swapped": (lambda w, p: w.Compare_and_swap(p(a(1)), p(a(1)), p(a(2)), 0), ValueError, "result .*single"),
    "no compare": (lambda w, p: w.Compare_and_swap(p(a(1)), None, p(a(1)), 0), TypeError, "compare is None"),
    "a list as disp": (lambda w, p: w.Fetch_and_op(p(a(1)), p(a(1)), 0, [1]), TypeError, "integer"),
    "None as disp": (lambda w, p: w.Compare_and_swap(p(a(1)), p(a(1)), p(a(1)), 0, None), TypeError, "integer"),
    "four items": (lambda w, p: w.Put(p(a(1)), 0, [0, 1, MPI.INT64_T, 0]), ValueError, "3 items at most"),
    "no count": (lambda w, p: w.Put(p(a(1)), 0, [0, None, MPI.INT64_T]), TypeError, "target is"),
    "a word": (lambda w, p: w.Accumulate(p(a(1)), 0, "x"), ValueError, "target is"),
    "a float": (lambda w, p: w.Get(p(a(1)), 0, 1.5), ValueError, "target is"),
    "a bad target with PROC_NULL": (lambda w, p: w.Put(p(a(1)), MPI.PROC_NULL, "x"), ValueError, "target is"),
    "no operator": (lambda w, p: w.Fetch_and_op(p(a(1)), p(a(1)), 0, 0, 3), TypeError, "op"),
    "no rank": (lambda w, p: w.Put(p(a(1)), None), TypeError, "integer"),
}
MINE = MPI.Op.Create(lambda one, other, datatype: None)
# MPI refuses them.
BY_MPI = {
    "negative disp": (lambda w: w.Put(put(a(1)), 0, -1), MPI.ERR_DISP),
    "negative disp of one": (lambda w: w.Fetch_and_op(put(a(1)), put(a(1)), 0, -1), MPI.ERR_DISP),
    "disp behind the end": (lambda w: w.Fetch_and_op(put(a(1)), put(a(1)), 0, 10**6), MPI.ERR_RMA_RANGE),
    "negative count": (lambda w: w.Put(put(a(1)), 0, [0, -1]), MPI.ERR_COUNT),
    "other elements": (lambda w: w.Accumulate(put(a(1)), 0, [0, 1, MPI.DOUBLE]), MPI.ERR_ARG),
    "shorter elements": (lambda w: w.Accumulate(put(a(1)), 0, [0, 2, MPI.INT32_T]), MPI.ERR_ARG),
    "NO_OP without result": (lambda w: w.Accumulate(put(a(1)), 0, 0, MPI.NO_OP), MPI.ERR_OP),
    "NO_OP with PROC_NULL": (lambda w: w.Raccumulate(put(a(1)), MPI.PROC_NULL, 0, MPI.NO_OP), MPI.ERR_OP),
    "the program's operator": (lambda w: w.Accumulate(put(a(1)), 0, 0, MINE), MPI.ERR_OP),
    "no operator": (lambda w: w.Fetch_and_op(put(a(1)), put(a(1)), 0, 0, MPI.OP_NULL), MPI.ERR_OP),
    "rank": (lambda w: w.Fetch_and_op(put(a(1)), put(a(1)), 99), MPI.ERR_RANK),
    "Shared_query of none": (lambda w: w.Shared_query(99), MPI.ERR_RANK),
    "Shared_query of a negative one": (lambda w: w.Shared_query(-77), MPI.ERR_RANK),
    "remote": (lambda w: w.remote(-1), MPI.ERR_RANK),
}


@comms
@pytest.mark.parametrize("what", BY_MPI4PY)
def test_as_mpi4py(comm, memory, what):
    call, expected, text = BY_MPI4PY[what]
    before = memory.read()
    with raises_everywhere(comm, expected, match=text):
        call(memory.win, put)
    plain = MPI.Win.Create(a(4), 8, comm=MPI.Intracomm(comm))
    with raises_everywhere(comm, expected):
        call(plain, lambda array: array)
    plain.Free()
    assert (memory.read() == before).all()


@comms
@pytest.mark.parametrize("what", BY_MPI)
def test_as_mpi(comm, memory, what):
    call, error_class = BY_MPI[what]
    before = memory.read()
    with raises_everywhere(comm, MPI.Exception) as raised:
        call(memory.win)
    assert raised.value.Get_error_class() == error_class
    assert (memory.read() == before).all()


@comms
def test_arguments_are_not_compared_with_proc_null(comm, memory):
    win = memory.win
    for buffers in ((None, None), (put(a(2)), put(a(2))), (put(a(1)), put(a(1, "f8")))):
        win.Fetch_and_op(*buffers, MPI.PROC_NULL)
        win.Compare_and_swap(*buffers, buffers[1], MPI.PROC_NULL)
        win.Rget_accumulate(*buffers, MPI.PROC_NULL).Wait()
        win.Rput(buffers[0], MPI.PROC_NULL).Wait()


@comms
@pytest.mark.parametrize("dtype", ["S4", "U1", "M8[s]", [("a", "f4"), ("b", "i4")]], ids=str)
@pytest.mark.skipif(not HOST, reason="CuPy has no such arrays")
def test_elements_without_arithmetic(comm, dtype):
    """They are copied; no change of them would be atomic."""
    array, memory = np.zeros(1, dtype), Memory(comm, "u1")
    for op in (MPI.SUM, MPI.MAX, MPI.BOR, MPI.REPLACE):
        with raises_everywhere(comm, TypeError, match="without arithmetic"):
            memory.win.Accumulate(array, 0, 0, op)
    with raises_everywhere(comm, TypeError, match="without arithmetic"):
        memory.win.Get_accumulate(array, array.copy(), 0)
    memory.win.Put(array, comm.rank)
    memory.win.Free()


@comms
@pytest.mark.parametrize("unit", [0, -4, "x"])
@pytest.mark.parametrize("way", ["Create", "Allocate", "Allocate_shared"])
def test_units(comm, unit, way):
    """Some rank's is wrong: all ranks raise."""
    mine = unit if comm.rank == comm.size - 1 else 8
    expected, info = TypeError if unit == "x" else MPI.Exception, MPI.Info.Create({"pyncclx_memory": "device"})
    memory = comm.Alloc(4, "i8") if way == "Create" else 32
    with raises_everywhere(comm, expected) as raised:
        getattr(pyncclx.Win, way)(memory, mine, info, comm)
    info.Free()
    assert unit == "x" or raised.value.Get_error_class() == MPI.ERR_DISP


@comms
@pytest.mark.parametrize("way", ["Allocate", "Allocate_shared"])
def test_negative_size(comm, way):
    info = MPI.Info.Create({"pyncclx_memory": "device"})
    with raises_everywhere(comm, MPI.Exception) as raised:
        getattr(pyncclx.Win, way)(-1 if comm.rank == 0 else 8, 1, info, comm)
    info.Free()
    assert raised.value.Get_error_class() == MPI.ERR_SIZE


@comms
def test_numbers_of_other_kinds(comm):
    """As mpi4py takes them: floats lose their fraction."""
    win = pyncclx.Win.Create(comm.Alloc(4, "i8"), 8.0, comm=comm)
    result = put(a(1) - 1)
    win.Fence()
    win.Fetch_and_op(put(a(1)), result, np.int32(0), 1.0)
    win.Fence()
    assert_everywhere(comm, int(result[0]) == 0)
    win.Free()
