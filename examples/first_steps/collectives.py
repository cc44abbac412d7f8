"""First step 1: collectives on device arrays, with mpi4py's arguments."""

from mpi4py import MPI

import pyncclx
from start import comm, report, xp

# Every rank gets the sum of all ranks' arrays.
x = xp.arange(6, dtype="f4") + comm.rank
y = xp.empty_like(x)
comm.Allreduce(x, y)
assert (y == comm.size * xp.arange(6) + sum(range(comm.size))).all()

# In place, and with other operators: MPI's, or the mean.
comm.Allreduce(MPI.IN_PLACE, x, op=pyncclx.AVG)
assert xp.allclose(x, y / comm.size)

# Blocks of all ranks, in rank order.
blocks = xp.empty((comm.size, 6), "f4")
comm.Allgather(xp.full(6, comm.rank, "f4"), blocks)
assert (blocks == xp.arange(comm.size)[:, None]).all()

# Every rank receives root's array. Rank 0 is root unless you pass another.
message = xp.full(3, comm.rank, "i4")
comm.Bcast(message, root=comm.size - 1)
assert (message == comm.size - 1).all()

report(comm.explain("Allreduce", x.nbytes))
