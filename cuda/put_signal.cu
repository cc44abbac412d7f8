// Win.Put_signal and Win.Wait_signal: data in a peer's memory, and a count that it can wait for, without the hosts.
//
// A signal is a word of a rank's DeviceTeam, to which its peers add. What has been waited for is counted on the device, so
// that both can be captured in a graph: a wait is over when `count` more have come than were taken before.
#include "device_team.cuh"

struct PutSignalArgs {
    const DeviceTeam* team;
    const char* origin;
    char* target;  // as mapped here
    u64 nbytes;    // 0: something before on the stream has moved the data
    u32 peer, signal;
};

struct WaitSignalArgs {
    const DeviceTeam* team;
    u64* taken;  // of this rank's signals; only waits touch it
    u64 count;
    u32 signal;
};

// One block. Its last act releases what all its threads have stored, and what kernels and copies before it have.
__global__ void __launch_bounds__(kMaxThreads, 1) put_signal(const __grid_constant__ PutSignalArgs args) {
    move_packs(
        threadIdx.x, packs_in(args.nbytes), blockDim.x, [&](u64 i) { return load_pack(args.origin, i, args.nbytes); },
        [&](u64 i, Pack pack) { put_pack(args.target, i, args.nbytes, pack); });
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
