"""pylops-mpi: distributed arrays and least squares, of NumPy's arrays, or of CuPy's where there is a GPU."""

import os

import numpy as np
import pylops
import pylops_mpi
from mpi4py import MPI

from support.clients.record import timed, value

comm = MPI.COMM_WORLD
engine, xp, sync = "numpy", np, int
if os.environ["CLIENT_DEVICE"] == "gpu":
    import cupy as xp

    engine, sync = "cupy", xp.cuda.Device().synchronize

count = 1 << 16
x = pylops_mpi.DistributedArray(global_shape=count * comm.size, engine=engine, dtype="f8")
x[:] = xp.arange(count, dtype="f8") % 97 + comm.rank
y = pylops_mpi.DistributedArray(global_shape=count * comm.size, engine=engine, dtype="f8")
y[:] = xp.ones(count)
value(comm, "dot", timed(comm, "dot", lambda: x.dot(y), sync=sync))
value(comm, "norm", timed(comm, "norm", lambda: x.norm(2), sync=sync))
whole = timed(comm, "asarray", x.asarray, sync=sync)
value(comm, "asarray", whole.sum(), whole[-1])

local = 64
matrix = xp.asarray(np.random.default_rng(comm.rank).standard_normal((3 * local, local)))
stack = pylops_mpi.MPIVStack([pylops.MatrixMult(matrix, dtype="f8")])
model = pylops_mpi.DistributedArray(
    global_shape=local, partition=pylops_mpi.Partition.BROADCAST, engine=engine, dtype="f8"
)
model[:] = xp.arange(local, dtype="f8")
data = stack @ model
start = pylops_mpi.DistributedArray(
    global_shape=local, partition=pylops_mpi.Partition.BROADCAST, engine=engine, dtype="f8"
)
start[:] = 0
solved = timed(comm, "CGLS", lambda: pylops_mpi.cgls(stack, data, x0=start, niter=20)[0], sync=sync)
value(comm, "CGLS", *np.round(xp.asarray(solved.local_array)[:5].tolist(), 6))
