"""First step 4: memory that all ranks have mapped; one-sided operations."""

from mpi4py import MPI

import pyncclx
from start import comm, report, xp

right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size

# Arrays from Alloc are in windows: long messages are stored there
# directly. Alloc is collective.
x, y = comm.Alloc(1 << 16), comm.Alloc(1 << 16)
x[:] = comm.rank
comm.Allreduce(x, y)
assert (y == sum(range(comm.size))).all()

# One-sided: every rank adds to elements of rank 0's array, atomically.
counter = comm.Alloc(4, "i8")
counter[:] = 0
win = pyncclx.Win.Create(counter, counter.itemsize, comm=comm)
win.Fence()
win.Accumulate(xp.ones(2, "i8"), 0, 1, MPI.SUM)  # elements 1 and 2
win.Fence()
if comm.rank == 0:
    assert counter.tolist() == [0, comm.size, comm.size, 0]
win.Free()

# Put with a signal: no epoch, no host, and it can be captured in a graph.
inbox = comm.Alloc(8, "f4")
win = pyncclx.Win.Create(inbox, inbox.itemsize, comm=comm)
win.Put_signal(xp.full(8, comm.rank, "f4"), right, 0)
win.Wait_signal()  # the stream waits for the rank on the left
assert (inbox == left).all()
comm.Barrier()
win.Free()

report(f"windows: {comm.memory_report()['windows']} bytes")
