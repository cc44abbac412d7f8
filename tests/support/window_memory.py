"""A window over a part of an array of `comm.Alloc`."""

import numpy as np

import pyncclx
from support.arrays import get

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


def opened(comm):
    """One, freed at the end: make a fixture of it."""
    memory = Memory(comm)
    yield memory
    memory.win.Free()
