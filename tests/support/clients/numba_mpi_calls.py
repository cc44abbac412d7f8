"""numba-mpi: compiled Python code calls MPI in C, with the communicator at the address of ``MPI.COMM_WORLD``."""

import numba
import numba_mpi
import numpy as np
from mpi4py import MPI

from support.clients.record import timed, value


@numba.njit
def ring(x, y):
    """Send x to the next rank and receive y from the one before; the sum over all ranks of both."""
    rank, size = numba_mpi.rank(), numba_mpi.size()
    if rank % 2:
        numba_mpi.recv(y, source=(rank - 1) % size, tag=3)
        numba_mpi.send(x, dest=(rank + 1) % size, tag=3)
    else:
        numba_mpi.send(x, dest=(rank + 1) % size, tag=3)
        numba_mpi.recv(y, source=(rank - 1) % size, tag=3)
    total = np.empty_like(x)
    numba_mpi.allreduce(x * y, total, operator=numba_mpi.Operator.SUM)
    numba_mpi.barrier()
    return total


comm = MPI.COMM_WORLD
x = np.arange(1000.0) + comm.rank
y = np.zeros_like(x)
total = ring(x, y)
value(comm, "ring", y.sum(), total.sum())
timed(comm, "ring of 8 KB and allreduce", lambda: [ring(x, y) for _ in range(200)])
