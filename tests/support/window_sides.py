"""One program on two windows: on device memory, and on host memory by mpi4py; both do the same."""

import numpy as np
from mpi4py import MPI

import pyncclx
from support.arrays import get, put
from support.reference import comparing

POISON, COUNT, BEGIN = -77, 200, 3  # elements of a rank's memory, and those before and behind it


class Side:
    """The window of one library; the same program runs on both."""

    def __init__(self, comm, memory, win, put_, get_):
        self.comm, self.memory, self.win, self.put, self.get = comm, memory, win, put_, get_
        self.target = (comm.rank + 1) % comm.size
        self.memory[...] = put_(np.full(COUNT + 2 * BEGIN, POISON))
        self.memory[BEGIN:-BEGIN] = put_(np.arange(COUNT) + 1000 * comm.rank)
        self.group = comm.Get_group()

    def epoch(self, how, access):
        """Run `access` in an epoch with the right neighbour; then `seen` is what is in this rank's memory."""
        win, right, left = self.win, self.target, (self.comm.rank - 1) % self.comm.size
        if how == "Fence":
            win.Fence()
            access()
            win.Fence()
        elif how == "Start":
            source, to = self.group.Incl([left]), self.group.Incl([right])
            win.Post(source)
            win.Start(to)
            access()
            win.Complete()
            win.Wait()
            source.Free()
            to.Free()
        else:
            win.Lock(right, MPI.LOCK_SHARED) if how == "Lock" else win.Lock_all()
            access()
            if how == "Lock":
                win.Unlock(right)
                MPI.Comm.Barrier(self.comm)
            else:
                win.Flush(right)
                MPI.Comm.Barrier(self.comm)
                win.Sync()
                self.seen = self.read()
                MPI.Comm.Barrier(self.comm)
                win.Unlock_all()
                return
        self.seen = self.read()

    def read(self):
        return self.get(self.memory).tolist()


def opened_sides(comm):
    """The sides of a communicator, closed at the end: make a fixture of it."""
    whole, host = comm.Alloc(COUNT + 2 * BEGIN, "i8"), np.empty(COUNT + 2 * BEGIN, "i8")
    plain = MPI.Win.Create(host[BEGIN:-BEGIN], 8, comm=MPI.Intracomm(comm))
    ours = pyncclx.Win.Create(whole[BEGIN:-BEGIN], 8, comm=comm)
    both = Side(comm, whole, ours, put, get), Side(MPI.Intracomm(comm), host, plain, np.array, np.array)
    MPI.Comm.Barrier(comm)
    yield both
    for side in both:
        side.win.Free()
        side.group.Free()


def arrays(side, call):
    """An origin and a result, with poison in the result."""
    origin = np.arange(120) * 3 + 7 * call + 100_000 * (side.comm.rank + 1)
    return side.put(origin), side.put(np.full(120, POISON))


def compared(comm, sides, program, texts):
    """Run a program on both sides for each text; compare what is in memory and what it returns."""
    with comparing() as compare:
        for call, text in enumerate(texts):
            found, expected = ((program(side, call, text), side.seen) for side in sides)
            compare(put(np.array(found[1])), np.array(expected[1]), f"{text}: memory")
            compare(put(np.array(found[0])), np.array(expected[0]), f"{text}: result")
            MPI.Comm.Barrier(comm)
