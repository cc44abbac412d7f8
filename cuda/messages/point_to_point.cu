// Send and receive: MPI matches messages, on the host; these kernels move what has been matched.
//
// A message has two words in its sender's memory, which carry its clock (pyncclx/messages/postbox.py hands them out; a
// word is not used for another message before this one is over):
//   ready   the sender's stream writes it once the data is there, the receiver's kernel reads it;
//   done    the receiver's kernel writes it once it has read everything, the sender reads it.
// Both are released by their writers and acquired by their readers.
//
// A short message is copied to a slot beside these words (`put_eager`, one block), and the sender's buffer is free at once. A
// long one stays in place: `offer` (one thread) signals `ready`, or waits for `done`, or both. `pull` (any number of blocks)
// fetches a message. If a message has come by the time that a short one is sent, `put_and_pull` does both.
#include "protocol/vector.cuh"
#include "protocol/wait.cuh"

struct Put {
    const char* from;
    char* slot;  // aligned for Pack
    u64* ready;
    u64 nbytes, clock;
};

struct Pull {
    const u64* ready;
    u64* done;
    u32* arrived;  // blocks of this kernel that have finished; 0 between kernels, one word for each stream
    const char* from;
    char* to;
    u64 nbytes, clock;
    int peer, tag;
};

struct PutArgs {
    Team team;
    Put put;
};

struct PullArgs {
    Team team;
    Pull pull;
};

struct ExchangeArgs {
    Team team;
    Put put;
    Pull pull;
};

struct OfferArgs {
    Team team;
    u64* ready;       // null: signalled before
    const u64* done;  // null: not awaited here
    u64 clock;
    int peer, tag;
};

__device__ __forceinline__ bool wait_for_clock(const Team& team, const u64* word, u64 clock, int peer, int tag) {
    return wait_for(team, word, Awaited{u32(clock), tag, peer, clock, 0});
}

// The work of one block.
__device__ __forceinline__ void put_message(const Put& put) {
    move_packs(
        threadIdx.x, packs_in(put.nbytes), blockDim.x,
        [&](u64 i) { return load_pack(put.from, i, put.nbytes); },
        [&](u64 i, Pack pack) { put_pack(reinterpret_cast<Pack*>(put.slot) + i, pack); });
    __syncthreads();
    if (threadIdx.x == 0) st_release_sys(put.ready, put.clock);
}

// The work of any number of blocks. With nbytes = 0 it only signals that the message is over.
__device__ __forceinline__ void pull_message(const Team& team, const Pull& pull) {
    bool ok = true;
    if (threadIdx.x == 0) ok = wait_for_clock(team, pull.ready, pull.clock, pull.peer, pull.tag);
    ok = __syncthreads_and(ok);
    const Part part(pull.nbytes, gridDim.x, blockIdx.x);
    if (ok) copy_here(threadIdx.x, blockDim.x, pull.from + part.begin, pull.to + part.begin, part.nbytes);
    __syncthreads();
    if (threadIdx.x != 0) return;
    // A block that gave up is counted too, so that the next kernel finds 0; then `done` is not signalled.
    __threadfence();
    if (atomicAdd(pull.arrived, 1u) + 1 != gridDim.x) return;
    __threadfence();  // with the other blocks' before their counts: all have read
    *pull.arrived = 0;
    if (ok && ld_relaxed_sys(&lease_header(team)->failed) == 0u) st_release_sys(pull.done, pull.clock);
}

template <class = void>
__global__ void __launch_bounds__(kMaxThreads, 1) put_eager(const __grid_constant__ PutArgs args) {
    put_message(args.put);
}

// One thread. Releases what the stream did before to the kernel that acquires `ready`.
template <class = void>
__global__ void __launch_bounds__(kMaxThreads, 1) offer(const __grid_constant__ OfferArgs args) {
    if (args.ready) st_release_sys(args.ready, args.clock);
    if (args.done) wait_for_clock(args.team, args.done, args.clock, args.peer, args.tag);
}

template <class = void>
__global__ void __launch_bounds__(kMaxThreads, 1) pull(const __grid_constant__ PullArgs args) {
    pull_message(args.team, args.pull);
}

// Sends a message and fetches one that has been matched, by one launch. No block waits before the first message is ready.
template <class = void>
__global__ void __launch_bounds__(kMaxThreads, 1) put_and_pull(const __grid_constant__ ExchangeArgs args) {
    if (blockIdx.x == 0) put_message(args.put);
    pull_message(args.team, args.pull);
}
