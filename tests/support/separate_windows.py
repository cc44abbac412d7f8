"""Programs of one-sided operations: on device arrays in pyncclx's windows, and on NumPy arrays in mpi4py's.

They are right in MPI's separate memory model, and deterministic: what they return must be equal. Each gets a `Side`.
"""

import numpy as np
from mpi4py import MPI

import pyncclx
from support import fake_gpu
from support.arrays import HOST, get, put
from support.reference import labels

COUNT = 7


class Side:
    """mpi4py's windows, on arrays of the host."""

    Win = MPI.Win

    def __init__(self, comm):
        self.comm, self.plain = MPI.Intracomm(comm), MPI.Intracomm(comm)
        self.rank, self.size = comm.rank, comm.size
        self.right, self.left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size

    def array(self, values):
        return np.array(values)

    def read(self, array):
        return array.copy()

    def store(self, array, place, values):
        array[place] = values

    def barrier(self):
        self.plain.Barrier()

    def zeros(self, count, dtype="i8"):
        return self.array(np.zeros(count, dtype))

    def window(self, values, unit=None):
        values = np.asarray(values)
        memory = self.array(values)
        return memory, self.Win.Create(memory, unit or values.itemsize, comm=self.comm)


class DeviceSide(Side):
    """Windows of public copies: arrays of a GPU, or of the stand-in for one."""

    Win = pyncclx.Win

    def __init__(self, comm):
        super().__init__(comm)
        self.comm = comm

    def array(self, values):
        return fake_gpu.Array(values) if HOST else put(values)

    def read(self, array):
        return array.host.copy() if HOST else get(array)

    def store(self, array, place, values):
        if HOST:
            array.host[place] = values
        else:
            array[place] = put(np.asarray(values, array.dtype))

    def window(self, values, unit=None):
        memory, win = super().window(values, unit)
        assert win.Get_attr(MPI.WIN_MODEL) == MPI.WIN_SEPARATE
        return memory, win


def fences(side):
    """Every rank has a stretch in every rank's memory; then all get what their neighbour has stored and got."""
    memory, win = side.window(labels(side.rank, COUNT * side.size + side.rank, 9))
    win.Fence(MPI.MODE_NOPRECEDE)
    for rank in range(side.size):
        win.Put(side.array(labels(side.rank, COUNT, rank)), rank, side.rank * COUNT)
    win.Fence()
    put_here = side.read(memory)
    side.store(memory, slice(2, 5), labels(side.rank, 3, 77))
    win.Fence()
    got = side.zeros(COUNT * side.size)
    win.Get(got, side.right, 0)
    win.Fence(MPI.MODE_NOSTORE | MPI.MODE_NOSUCCEED)
    found = side.read(memory)
    win.Free()
    return put_here, side.read(got), found


def stores_and_puts_in_one_epoch(side):
    """To bytes beside each other: each side's change is there on both."""
    memory, win = side.window(np.arange(5 * side.size, dtype="u1"), 1)
    win.Fence()
    side.store(memory, slice(5 * side.rank, 5 * side.rank + 2), [200 + side.rank, 210 + side.rank])
    win.Put(side.array(np.full(3, 100 + side.rank, "u1")), side.right, 5 * side.right + 2)
    win.Fence()
    here, got = side.read(memory), side.zeros(5 * side.size, "u1")
    win.Get(got, side.right)
    win.Fence()
    win.Free()
    return here, side.read(got)


def accumulates(side):
    """Sums on all ranks, a maximum, a replacement by the neighbour, what was there before."""
    memory, win = side.window(np.arange(4 * COUNT, dtype="i8") + 1000 * side.rank)
    old, untouched = side.zeros(3), side.zeros(2)
    win.Fence()
    for rank in range(side.size):
        win.Accumulate(side.array(np.arange(COUNT) * (side.rank + 1)), rank)
        win.Accumulate(side.array(np.arange(COUNT) * 400 * side.rank), rank, COUNT, MPI.MAX)
    win.Accumulate(side.array(np.full(3, -side.rank - 1)), side.right, [2 * COUNT, 3, MPI.LONG], MPI.REPLACE)
    win.Fence()
    win.Get_accumulate(side.array(np.full(3, 5)), old, side.right, 2 * COUNT, MPI.PROD)
    win.Get_accumulate(side.zeros(2), untouched, side.right, 3 * COUNT, MPI.NO_OP)
    win.Fence()
    found = side.read(memory)
    win.Free()
    return found, side.read(old), side.read(untouched)


def post_start_complete_wait(side):
    """To the right neighbour, twice; between the epochs this rank stores."""
    memory, win = side.window(labels(side.rank, 2 * COUNT + 1, 3))
    group, seen = side.plain.Get_group(), []
    to, source = group.Incl([side.right]), group.Incl([side.left])
    for call in range(2):
        got = side.zeros(2)
        win.Post(source)
        win.Start(to)
        win.Put(side.array(labels(side.rank, COUNT, call)), side.right, call)
        win.Get(got, side.right, 2 * COUNT - 1)
        win.Complete()
        if call:
            while not win.Test():
                pass
        else:
            win.Wait()
        seen += [side.read(memory), side.read(got)]
        side.store(memory, slice(2 * COUNT, None), labels(side.rank, 1, 50 + call))
    for each in (group, to, source):
        each.Free()
    win.Free()
    return seen


def locks(side):
    """A rank sees what has been put once it has its own lock; others see what it stored once it has let go of it."""
    memory, win = side.window(labels(side.rank, COUNT, 1))
    win.Lock(side.right, MPI.LOCK_SHARED)
    win.Put(side.array(labels(side.rank, 2, 5)), side.right, 3)
    win.Unlock(side.right)
    side.barrier()
    win.Lock(side.rank)
    here = side.read(memory)
    side.store(memory, slice(0, 2), labels(side.rank, 2, 8))
    win.Unlock(side.rank)
    side.barrier()
    got = side.zeros(COUNT)
    win.Lock(side.right)
    win.Get(got, side.right)
    win.Flush(side.right)
    there = side.read(got)
    win.Unlock(side.right)
    side.barrier()
    win.Free()
    return here, there


def lock_all_and_sync(side):
    """Put, Flush, meet, Sync, store, Sync, meet, Get; the second time without a Sync: Unlock_all and Lock_all do it."""
    memory, win = side.window(labels(side.rank, 2 * COUNT, 2))
    seen = []
    win.Lock_all()
    for call in range(2):
        win.Put(side.array(labels(side.rank, 3, 20 + call)), side.right, call)
        win.Flush(side.right)
        side.barrier()
        for again in range(2):
            if call:
                win.Unlock_all()
                win.Lock_all()
            else:
                win.Sync()
            if not again:
                seen.append(side.read(memory))
                side.store(memory, slice(COUNT, COUNT + 2), labels(side.rank, 2, 30 + call))
        side.barrier()
        got = side.zeros(2 * COUNT)
        win.Rget(got, side.left).Wait()
        seen.append(side.read(got))
        side.barrier()
    win.Unlock_all()
    win.Free()
    return seen


def single_elements(side):
    """All ranks count on rank 0, under shared locks; each takes a place of its own there, which another cannot take."""
    memory, win = side.window(np.zeros(2 + 2 * side.size, "i8"))
    old, was, again = side.zeros(1), side.zeros(1), side.zeros(1)
    for _ in range(3):
        win.Lock(0, MPI.LOCK_SHARED)
        win.Fetch_and_op(side.array(np.full(1, side.rank + 1)), old, 0, 1)
        win.Unlock(0)
    win.Lock(0)
    for value, result in ((side.rank + 5, was), (99, again)):
        swapped = side.array(np.full(1, value)), side.zeros(1)
        win.Compare_and_swap(*swapped, result, 0, 2 + 2 * side.rank)
        win.Flush(0)
    win.Unlock(0)
    side.barrier()
    win.Lock(side.rank)
    found = side.read(memory)
    win.Unlock(side.rank)
    win.Free()
    return found, side.read(was), side.read(again)


def derived_datatypes(side):
    """A column of a matrix into every other element, with units of displacements that differ between the ranks."""
    unit = 8 * (1 + side.rank % 2)
    units = side.plain.allgather(unit)
    memory, win = side.window(labels(side.rank, 6 * COUNT), unit)
    column, other = MPI.INT64_T.Create_vector(COUNT, 1, 3).Commit(), MPI.INT64_T.Create_vector(COUNT, 1, 2).Commit()
    rows, back = side.array(labels(side.rank, 3 * COUNT, 6)), side.array(np.full(3 * COUNT, -1))
    win.Fence()
    win.Put([rows, 1, column], side.right, [32 // units[side.right], 1, other])
    win.Fence()
    win.Get([back, 1, column], side.right, [16 // units[side.right], 1, other])
    win.Accumulate([rows, COUNT, MPI.INT64_T], side.left, [4 * COUNT * 8 // units[side.left], COUNT, MPI.INT64_T])
    win.Fence()
    found = side.read(memory)
    for each in (column, other):
        each.Free()
    win.Free()
    return found, side.read(back)


def odd_lengths(side):
    """Memory of 4003 bytes and more, and of none on rank 0, in units of 3 bytes."""
    length = (4003 + side.rank) * (side.rank > 0)
    memory, win = side.window(np.arange(length).astype("u1"), 3)
    win.Lock_all()
    for rank in range(1, side.size):
        win.Put(side.array(np.full(17, 50 + side.rank, "u1")), rank, 100 + 7 * side.rank)
    win.Flush_all()
    side.barrier()
    win.Sync()
    here = side.read(memory)
    win.Unlock_all()
    win.Free()
    return here, np.zeros(0)


def memory_on_the_host(side):
    """Odd ranks expose host memory, the others device arrays."""
    memory = np.full(COUNT, -1) if side.rank % 2 else side.array(np.full(COUNT, -1))
    win = side.Win.Create(memory, 8, comm=side.comm)
    win.Fence()
    win.Put(side.array(labels(side.rank, COUNT)), side.right)
    win.Fence()
    found = memory.copy() if side.rank % 2 else side.read(memory)
    win.Free()
    return (found,)


def freed_after_the_last_epoch(side):
    """What has been put is there when the window is gone."""
    memory, win = side.window(np.full(COUNT, -1))
    win.Lock(side.right, MPI.LOCK_SHARED)
    win.Put(side.array(labels(side.rank, COUNT)), side.right)
    win.Unlock(side.right)
    win.Free()
    return (side.read(memory),)


PROGRAMS = {
    each.__name__: each
    for each in (
        *(fences, stores_and_puts_in_one_epoch, accumulates, post_start_complete_wait, locks, lock_all_and_sync),
        *(single_elements, derived_datatypes, odd_lengths, memory_on_the_host, freed_after_the_last_epoch),
    )
}
