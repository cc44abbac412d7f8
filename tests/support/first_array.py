"""Each rank has its arrays on a GPU that is not the current one, as programs do that name it in every call."""

import cupy
import numpy as np

from pyncclx import MPI

comm = MPI.COMM_WORLD
gpu = comm.rank % cupy.cuda.runtime.getDeviceCount()
with cupy.cuda.Device(gpu):
    x = cupy.full(1000, comm.rank + 1, "f4")
    y = cupy.empty_like(x)
    cupy.cuda.get_current_stream().synchronize()
expected = sum(range(1, comm.size + 1))
for _ in range(3):
    cupy.cuda.runtime.setDevice(0)  # as libraries do that restore what was current when they began
    comm.Allreduce(x, y)
    again = comm.Split(0, comm.rank)
    cupy.cuda.runtime.setDevice(0)
    again.Bcast(x if comm.rank == 0 else y, 0)
    again.Free()
    cupy.cuda.runtime.setDevice(0)
    comm.Allreduce(x, y)
    with cupy.cuda.Device(gpu):
        np.testing.assert_array_equal(cupy.asnumpy(y), np.full(1000, expected, "f4"))
print(f"rank {comm.rank} on GPU {gpu}")
