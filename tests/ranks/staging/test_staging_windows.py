"""One-sided operations between host memory and device arrays: once complete, the results of host arrays."""

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx.windows import accesses
from support.arrays import host_only
from support.fake_gpu import Array, allowed, check, installed, ramp

pytestmark = host_only
gpu = pytest.fixture(installed, autouse=True)
comm = pytest.fixture(allowed)
COUNT = 5


@pytest.fixture
def win(comm):
    made = pyncclx.Win.Allocate(COUNT * 8 * comm.size, 8, comm=comm)
    np.frombuffer(made.tomemory(), "f8")[:] = 0
    made.Fence()
    yield made
    made.Free()


def test_fences(comm, win):
    """A stretch for each rank; what comes back is on the device after the fence, and not before."""
    right = (comm.rank + 1) % comm.size
    win.Put(Array(ramp(comm, COUNT)), right, comm.rank * COUNT)
    win.Fence()
    win.Accumulate([Array(ramp(comm, COUNT)), MPI.DOUBLE], right, target=comm.rank * COUNT, op=MPI.SUM)
    win.Fence()
    y = Array(np.full(COUNT + 1, -1.0))
    win.Get([y, COUNT, MPI.DOUBLE], right, [comm.rank * COUNT])
    win.Fence()
    check(y, [*2 * ramp(comm, COUNT), -1])
    memory = np.frombuffer(win.tomemory(), "f8").reshape(comm.size, COUNT)
    left = (comm.rank - 1) % comm.size
    np.testing.assert_array_equal(memory[left], 2 * ramp(comm, COUNT, rank=left))
    win.Fence()


def test_flush_is_for_one_rank(comm, win):
    """An operation with another rank may be under way still: its copy is kept until that is complete."""
    x, y = Array(np.full(1, -1.0)), Array(np.full(1, -1.0))
    win.Lock_all()
    win.Put(Array(np.full(1, 7.0)), comm.rank, comm.rank)
    win.Flush(comm.rank)
    comm.Barrier()  # before any rank reads what its neighbor has put there
    win.Get(x, comm.rank, comm.rank)
    win.Get(y, (comm.rank + 1) % comm.size, COUNT - 1)
    win.Flush_local(comm.rank)
    check(x, [7])
    win.Unlock_all()
    check(y, [0] if (comm.rank + 1) % comm.size != COUNT - 1 else [7])


def test_atomics(comm, win):
    """All ranks count on rank 0; one rank takes the place."""
    numbers = []
    for _ in range(3):
        number = Array(np.full(1, -1.0))
        win.Lock(0, MPI.LOCK_SHARED)
        win.Fetch_and_op(Array(np.ones(1)), number, 0)
        win.Unlock(0)
        numbers.append(number.host[0])
    assert sorted(np.concatenate(comm.allgather(numbers))) == list(range(3 * comm.size))
    was, sum_ = Array(np.full(1, -1, "i8")), Array(np.full(1, -1.0))
    win.Lock(0)
    win.Compare_and_swap(Array(np.full(1, comm.rank + 1)), Array(np.zeros(1, "i8")), was, 0, 1)
    win.Flush(0)
    win.Get_accumulate(Array(np.ones(1)), sum_, 0, 2)
    win.Unlock(0)
    seen, sums = comm.allgather(was.host[0]), comm.allgather(sum_.host[0])
    assert seen.count(0) == 1
    assert set(seen) <= {0, seen.index(0) + 1}
    assert sorted(sums) == list(range(comm.size))


def test_requests(comm, win):
    """The result is there when the request is complete, by whatever call."""
    right, y, old = (comm.rank + 1) % comm.size, Array(np.zeros(COUNT)), Array(np.zeros(COUNT))
    place = comm.rank * COUNT
    win.Lock_all()
    win.Rput(Array(ramp(comm, COUNT)), right, place).Wait()
    win.Flush(right)
    MPI.Request.Waitall([win.Rget_accumulate(Array(np.ones(COUNT)), old, right, place)])  # mpi4py's own
    win.Flush(right)
    win.Raccumulate(Array(np.ones(COUNT)), right, place).Wait()
    win.Flush(right)
    win.Rget(y, right, place).Wait()
    win.Unlock_all()
    check(old, ramp(comm, COUNT))
    check(y, ramp(comm, COUNT) + 2)


def test_elements_without_arithmetic(comm, win):
    """They are put, not added."""
    win.Lock(comm.rank)
    win.Put(Array(np.zeros(2, "S4")), comm.rank)
    with pytest.raises(TypeError, match="without arithmetic"):
        win.Accumulate(Array(np.zeros(2, "S4")), comm.rank)
    with pytest.raises(TypeError, match="without arithmetic"):
        win.Get_accumulate(Array(np.zeros(2, "S4")), Array(np.zeros(2, "S4")), comm.rank)
    win.Unlock(comm.rank)


def test_put_to_proc_null(comm, win):
    """No rank's memory changes, nothing is received, and the next put is the right one."""
    y = Array(np.full(2, -1.0))
    win.Put(Array(ramp(comm, 2)), MPI.PROC_NULL)
    win.Get(y, MPI.PROC_NULL)
    win.Fence()
    memory = np.frombuffer(win.tomemory(), "f8")
    check(y, [-1, -1])
    np.testing.assert_array_equal(memory, np.zeros(COUNT * comm.size))
    win.Fence()
    win.Put(Array(ramp(comm, 2)), (comm.rank + 1) % comm.size, 1)
    win.Fence()
    expected = np.zeros(COUNT * comm.size)
    expected[1:3] = ramp(comm, 2, rank=(comm.rank - 1) % comm.size)
    np.testing.assert_array_equal(memory, expected)
    win.Fence()


def test_refused_unless_allowed(comm, win, monkeypatch):
    monkeypatch.setattr(win._state, "staging", False)
    monkeypatch.setattr(accesses, "is_cuda_aware", lambda: False)
    with pytest.raises(pyncclx.NotSupported, match=r"Win\.Put: origin is on the device.*from pyncclx import MPI"):
        win.Put(Array(ramp(comm, 2)), comm.rank)
    win.Fence()
