// Send and receive: MPI matches messages, on the host; these kernels move what has been matched.
//
// A message has two words in its sender's memory, which carry its clock (pyncclx/messages/context.py hands them out; a
// word is not used for another message before this one is over):
//   ready   the sender's stream writes it once the data is there, the receiver's kernel reads it;
//   done    the receiver's kernel writes it once it has read everything, the sender reads it.
// Both are released by their writers and acquired by their readers. If the sender's wait for `done` ends early, it writes 0
// to `ready`, because its stream may then overwrite the data: a receiver that comes later times out, too.
//
// A short message is copied to a slot beside these words (`put_eager`, one block), and the sender's buffer is free at once. A
// long one stays in place: `offer` (one thread) signals `ready`, or waits for `done`, or both. `pull` (any number of blocks)
// fetches a message. If a message has come by the time that a short one is sent, `put_and_pull` does both.
//
// `move_messages` does all of this for many messages at once. Its puts and signals come first and wait for no message of
// this launch, so that the messages of two ranks cannot wait for each other, however few blocks fit on the GPU.
//
// In a graph a message is one of a *channel*, from one persistent request to another: its clock is the number of times that
// the channel was used, which each side counts in its own memory. The two words of a channel are 32 bits wide, for such
// numbers wrap around. A channel of short messages has two slots that take turns: `put` waits until the message before the
// last one has been read.
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
    u64* ready;
    const u64* done;  // null: not awaited here
    u64 clock;
    int peer, tag, signals, unused;  // signals: 0 if `ready` was signalled before
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

// One of `blocks` blocks copies a part of a message and is counted. True on thread 0 of the last, if all succeeded.
__device__ __forceinline__ bool fetch_part(
    const Team& team, const char* from, char* to, u64 nbytes, u32* arrived, u32 blocks, u32 block, bool ok) {
    const Part part(nbytes, blocks, block);
    if (ok) copy_here(threadIdx.x, blockDim.x, from + part.begin, to + part.begin, part.nbytes);
    __syncthreads();
    if (threadIdx.x != 0) return false;
    // A block that failed is counted too, so that the next kernel finds 0; then `done` is not signalled.
    __threadfence();
    if (atomicAdd(arrived, 1u) + 1 != blocks) return false;
    __threadfence();  // with the other blocks' before their counts: all have read
    *arrived = 0;
    return ok && ld_relaxed_sys(&lease_header(team)->failed) == 0u;
}

// The work of one of any number of blocks. With nbytes = 0 it only signals that the message is over.
__device__ __forceinline__ void pull_message(const Team& team, const Pull& pull, u32 blocks, u32 block) {
    bool ok = true;
    if (threadIdx.x == 0) ok = wait_for_clock(team, pull.ready, pull.clock, pull.peer, pull.tag);
    ok = __syncthreads_and(ok);
    if (fetch_part(team, pull.from, pull.to, pull.nbytes, pull.arrived, blocks, block, ok))
        st_release_sys(pull.done, pull.clock);
}

template <class = void>
__global__ void __launch_bounds__(kMaxThreads, 1) put_eager(const __grid_constant__ PutArgs args) {
    put_message(args.put);
}

// One thread. Releases what the stream did before to the kernel that acquires `ready`.
template <class = void>
__global__ void __launch_bounds__(kMaxThreads, 1) offer(const __grid_constant__ OfferArgs args) {
    if (args.signals) st_release_sys(args.ready, args.clock);
    if (args.done && !wait_for_clock(args.team, args.done, args.clock, args.peer, args.tag))
        st_release_sys(args.ready, u64(0));
}

template <class = void>
__global__ void __launch_bounds__(kMaxThreads, 1) pull(const __grid_constant__ PullArgs args) {
    pull_message(args.team, args.pull, gridDim.x, blockIdx.x);
}

// Sends a message and fetches one that has been matched, by one launch. No block waits before the first message is ready.
template <class = void>
__global__ void __launch_bounds__(kMaxThreads, 1) put_and_pull(const __grid_constant__ ExchangeArgs args) {
    if (blockIdx.x == 0) put_message(args.put);
    pull_message(args.team, args.pull, gridDim.x, blockIdx.x);
}

// Many messages

constexpr u32 kMostMessages = 39;  // messages of one launch: a kernel's parameters are at most 4 KB

enum MessageKind : int { kPutMessage, kSignalMessage, kPullMessage, kAwaitMessage };  // in the order of their blocks

struct Message {
    const char* from;
    char* to;
    u64 nbytes;
    u64* ready;
    u64* done;
    u64 clock;
    u32* arrived;  // kPullMessage: as in Pull
    u32* epoch;    // null: `clock` counts. Else how often this side has used the channel
    u64 stride;    // distance between the two slots of a channel
    u32 first_block, blocks;
    int kind, peer, tag, unused;
};

struct BatchArgs {
    Team team;
    u32 count, unused;
    Message messages[kMostMessages];
};

__device__ __forceinline__ bool wait_for_epoch(const Team& team, const u64* word, u32 epoch, const Message& message) {
    return wait_for(team, reinterpret_cast<const u32*>(word), Awaited{epoch, message.tag, message.peer, epoch, 0});
}

__device__ __forceinline__ void signal_epoch(u64* word, u32 epoch) { st_release_sys(reinterpret_cast<u32*>(word), epoch); }

__device__ __forceinline__ void put_in_channel(const Team& team, const Message& message) {
    const u32 epoch = *message.epoch + 1;
    bool ok = true;
    if (threadIdx.x == 0) ok = wait_for_epoch(team, message.done, epoch - 2, message);
    if (!__syncthreads_and(ok)) return;
    copy_here(threadIdx.x, blockDim.x, message.from, message.to + epoch % 2 * message.stride, message.nbytes);
    __syncthreads();
    if (threadIdx.x != 0) return;
    *message.epoch = epoch;
    signal_epoch(message.ready, epoch);
}

__device__ __forceinline__ void pull_from_channel(const Team& team, const Message& message, u32 block) {
    const u32 epoch = *message.epoch + 1;  // all blocks read it before the last one writes it
    bool ok = true;
    if (threadIdx.x == 0) ok = wait_for_epoch(team, message.ready, epoch, message);
    ok = __syncthreads_and(ok);
    const char* from = message.from + epoch % 2 * message.stride;
    if (!fetch_part(team, from, message.to, message.nbytes, message.arrived, message.blocks, block, ok)) return;
    *message.epoch = epoch;
    signal_epoch(message.done, epoch);
}

// One thread.
__device__ __forceinline__ void signal_or_await(const Team& team, const Message& message) {
    const bool signals = message.kind == kSignalMessage;
    if (message.epoch == nullptr) {
        if (signals) st_release_sys(message.ready, message.clock);
        else wait_for_clock(team, message.done, message.clock, message.peer, message.tag);
        return;
    }
    const u32 epoch = *message.epoch + 1;
    if (signals) signal_epoch(message.ready, epoch);
    else if (!wait_for_epoch(team, message.done, epoch, message)) return;
    *message.epoch = epoch;
}

template <class = void>
__global__ void __launch_bounds__(kMaxThreads, 1) move_messages(const __grid_constant__ BatchArgs args) {
    __shared__ u32 mine;
    for (u32 i = threadIdx.x; i < args.count; i += blockDim.x)
        if (blockIdx.x - args.messages[i].first_block < args.messages[i].blocks) mine = i;
    __syncthreads();
    const Message& message = args.messages[mine];
    const u32 block = blockIdx.x - message.first_block;
    if (message.kind == kPutMessage) {
        if (message.epoch) put_in_channel(args.team, message);
        else put_message(Put{message.from, message.to, message.ready, message.nbytes, message.clock});
    } else if (message.kind != kPullMessage) {
        if (threadIdx.x == 0) signal_or_await(args.team, message);
    } else if (message.epoch) {
        pull_from_channel(args.team, message, block);
    } else {
        const Pull pull{message.ready, message.done, message.arrived, message.from, message.to,
                        message.nbytes, message.clock, message.peer, message.tag};
        pull_message(args.team, pull, message.blocks, block);
    }
}
