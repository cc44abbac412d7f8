// Send and receive: matching is MPI's, on the host; these kernels move what has been matched.
//
// A message has two words in its sender's memory, which carry its clock (pyncclx/messages/postbox.py says how they
// are handed out; a word is not used for another message before this one is over):
//   ready   written by the sender's stream once the data is there, read by the receiver's kernel;
//   done    written by the receiver's kernel once it has read all, read by the sender.
//
// A short message is copied to a slot beside these words (`put_eager`), and the sender's buffer is free at once. A
// long one stays where it is: `offer` says that it is ready, or waits until it was taken, or both.
#include "vector.cuh"
#include "wait.cuh"

struct PutArgs {
    Team team;
    const char* from;
    char* slot;  // aligned for Pack
    u64* ready;
    u64 nbytes, clock;
};

struct OfferArgs {
    Team team;
    u64* ready;       // null: said before
    const u64* done;  // null: not waited for here
    u64 clock;
    int peer, tag;
};

struct PullArgs {
    Team team;
    const u64* ready;
    u64* done;
    u32* arrived;  // blocks of this kernel that are through; 0 between kernels, one word for each stream
    const char* from;
    char* to;
    u64 nbytes, clock;
    int peer, tag;
};

__device__ __forceinline__ bool wait_for_clock(const Team& team, const u64* word, u64 clock, int peer, int tag) {
    return wait_for(team, word, Awaited{u32(clock), tag, peer, clock, 0});
}

// One block.
__global__ void __launch_bounds__(kMaxThreads, 1) put_eager(const __grid_constant__ PutArgs args) {
    move_packs(
        threadIdx.x, packs_in(args.nbytes), blockDim.x,
        [&](u64 i) { return load_pack(args.from, i, args.nbytes); },
        [&](u64 i, Pack pack) { put_pack(reinterpret_cast<Pack*>(args.slot) + i, pack); });
    __syncthreads();
    if (threadIdx.x == 0) st_release_sys(args.ready, args.clock);
}

// One thread. What the stream did before is visible to whoever acquires `ready`.
__global__ void __launch_bounds__(kMaxThreads, 1) offer(const __grid_constant__ OfferArgs args) {
    if (args.ready) st_release_sys(args.ready, args.clock);
    if (args.done) wait_for_clock(args.team, args.done, args.clock, args.peer, args.tag);
}

// Any number of blocks. With nbytes = 0 it says only that the message is over.
__global__ void __launch_bounds__(kMaxThreads, 1) pull(const __grid_constant__ PullArgs args) {
    bool ok = true;
    if (threadIdx.x == 0) ok = wait_for_clock(args.team, args.ready, args.clock, args.peer, args.tag);
    ok = __syncthreads_and(ok);
    const Part part(args.nbytes, gridDim.x, blockIdx.x);
    if (ok)
        move_packs(
            threadIdx.x, packs_in(part.nbytes), blockDim.x,
            [&](u64 i) { return get_pack(args.from + part.begin, i, part.nbytes); },
            [&](u64 i, Pack pack) { store_pack(args.to + part.begin, i, part.nbytes, pack); });
    __syncthreads();
    if (threadIdx.x != 0) return;
    // A block that gave up is counted too, so that the next kernel finds 0; nobody hears then that the message is over.
    __threadfence();
    if (atomicAdd(args.arrived, 1u) + 1 != gridDim.x) return;
    __threadfence();  // with the other blocks' before their counts: all have read
    *args.arrived = 0;
    if (ok && ld_relaxed_sys(&lease_header(args.team)->failed) == 0u) st_release_sys(args.done, args.clock);
}
