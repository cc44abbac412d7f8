"""First step 6: your own kernel that communicates, in CUDA C++."""

import pyncclx.device as d
from start import comm, report, xp

SOURCE = """
#include "pyncclx.cuh"

// One block of each rank sends a message to the next rank, and adds its own
// to the message of the previous rank.
extern "C" __global__ void ring(pyncclx_team team, float* inbox,
                                const float* message, float* sum,
                                long long count) {
    const int next = (pyncclx_rank(team) + 1) % pyncclx_size(team);
    // The data, then signal 0.
    pyncclx_put_signal_block(team, inbox, message, count * sizeof(float),
                             next, 0, 1);
    if (!pyncclx_wait_until_block(team, 0, 1)) return;  // a peer is missing
    for (long long i = threadIdx.x; i < count; i += blockDim.x)
        sum[i] = message[i] + inbox[i];
}
"""

ring = d.kernel(SOURCE, "ring")  # compiled for this device
team = comm.device_team()  # argument of device functions; collective
inbox = comm.Alloc(1000)  # peers can write to it
message, total = xp.full(1000, comm.rank, "f4"), xp.empty(1000, "f4")

# 1 block of 256 threads, on the current stream
ring(1, 256, [team, inbox, message, total, 1000])
comm.synchronize()
team.check()  # raises errors that device functions have recorded

left = (comm.rank - 1) % comm.size
assert (total == comm.rank + left).all()
report("your own kernel: done")
