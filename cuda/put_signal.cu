// Win.Put_signal and Win.Wait_signal: data in a peer's memory, and a count that it can wait for, without the hosts.
//
// A signal is a word of a rank's DeviceTeam, to which its peers add. What has been waited for is counted on the device, so
// that both can be captured in a graph: a wait is over when `count` more have come than were taken before.
#include "device_meetings.cuh"

struct PutArgs {
    const char* origin;
    char* target;  // as mapped here
    u64 nbytes;
};

struct PutSignalArgs {
    const DeviceTeam* team;
    u32 peer, signal;
    PutArgs data;  // none if something before on the stream has moved it
};

struct WaitSignalArgs {
    const DeviceTeam* team;
    u64* taken;  // of this rank's signals; only waits touch it
    u64 count;
    u32 signal;
};

__device__ __forceinline__ void put(const PutArgs& data, u64 thread, u64 threads) {
    move_packs(
        thread, packs_in(data.nbytes), threads, [&](u64 i) { return load_pack(data.origin, i, data.nbytes); },
        [&](u64 i, Pack pack) { put_pack(data.target, i, data.nbytes, pack); });
}

// Moves what is too much for one block; the end of the kernel comes before the signal of the next.
__global__ void __launch_bounds__(kMaxThreads, 1) put_blocks(const __grid_constant__ PutArgs args) {
    put(args, u64(blockIdx.x) * blockDim.x + threadIdx.x, u64(gridDim.x) * blockDim.x);
}

// One block. Its last act releases what all its threads have stored, and what kernels and copies before it have.
__global__ void __launch_bounds__(kMaxThreads, 1) put_signal(const __grid_constant__ PutSignalArgs args) {
    put(args.data, threadIdx.x, blockDim.x);
    __syncthreads();
    if (threadIdx.x == 0) add_release_sys(signal_word(args.team->state[args.peer], args.signal), u64(1));
}

// One thread. Acquires for the kernels behind it on the stream.
__global__ void __launch_bounds__(kMaxThreads, 1) wait_signal(const __grid_constant__ WaitSignalArgs args) {
    const DeviceTeam& team = *args.team;
    const u64 until = atomic_add_sys(&args.taken[args.signal], args.count) + args.count;
    const Awaited what{args.signal, kWaitSignal, kAnyRank, until, 0};
    wait_for_word(team, signal_word(own_state(team), args.signal), what);
}
