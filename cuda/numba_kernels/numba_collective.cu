// The kernel around a collective written in Python (pyncclx/numba_kernels), which gets the call's arguments as numbers.
//
// The code that Numba compiled and the device API are linked with it, and become one kernel.
// pyncclx/numba_kernels/workspace.py and compiled.py pack the arguments.
// Launch: blocks of up to 512 threads, two of which fit a multiprocessor.
#include "numba_kernels/device_api.cu"

struct NumbaArgs {
    pyncclx::Team team;
    u64 device_team, workspace;
    i64 words[16];
};

extern "C" __device__ void pyncclx_numba_collective(u64 team, u64 workspace, const i64* args, u64 call);

// For Alltoallv: records rows that did not fit, or invalid counts; the communicator's next call raises the error.
extern "C" __device__ int pyncclx_numba_overflow(u64 call, u64 kind, int source, i64 wanted, i64 capacity) {
    pyncclx::record_overflow(*reinterpret_cast<const pyncclx::Team*>(call), kind, source, wanted, capacity);
    return 1;
}

// The block's last warp, which has least to do, loads what the device API is about to look up: words of the team, and of its
// first window, which is the workspace. Then the other warps find them in the cache.
__device__ void fetch_team(u64 team) {
    const int lane = int(threadIdx.x % 32), rank = lane % pyncclx::kMaxRanks;
    if (threadIdx.x / 32 != (blockDim.x - 1) / 32) return;
    const pyncclx::View v = pyncclx::view(team, rank);
    const pyncclx::DeviceWindow& workspace = v.windows->window[0];
    pyncclx::now(v.windows->count);
    pyncclx::now(workspace.bases[rank]);
    pyncclx::now(workspace.nbytes[rank]);
}

__global__ void __launch_bounds__(512, 2) numba_collective(const __grid_constant__ NumbaArgs args) {
    fetch_team(args.device_team);
    // The collective has words of its own; block 0 takes part in channel 0 as well, which compares the ranks' calls.
    const bool compares = blockIdx.x == 0;
    pyncclx::ChannelControl* const control = pyncclx::channel_control(args.team, args.team.rank, 0);
    pyncclx::Channel channel(args.team, control, false, compares, compares);
    pyncclx_numba_collective(args.device_team, args.workspace, args.words, reinterpret_cast<u64>(&args.team));
    if (compares) channel.leave(false, [](int) { return true; });
}
