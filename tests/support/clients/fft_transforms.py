"""mpi4py-fft: a transform of a distributed array there and back, in slabs and pencils, and redistributions."""

import mpi4py_fft
import numpy as np
from mpi4py import MPI

from support.clients.record import timed, value

comm = MPI.COMM_WORLD
for name, options in (("slab", {"slab": True}), ("pencil", {"slab": False}), ("complex", {"dtype": complex})):
    plan = mpi4py_fft.PFFT(comm, [32, 24, 20], **{"dtype": float, **options})
    u = mpi4py_fft.newDistArray(plan, False)
    u[...] = np.random.default_rng(comm.rank).standard_normal(u.shape)
    hat = plan.forward(u).copy()
    back = timed(comm, name, lambda u=u, plan=plan: plan.backward(plan.forward(u)), repeats=20)
    value(comm, name, abs(hat).sum(), abs(back - u).max() < 1e-12)
    turned = u.redistribute(2)
    value(comm, f"{name}, redistributed", abs(turned).sum(), turned.shape[2])
