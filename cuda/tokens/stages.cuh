// Many tokens: how blocks and warps share them, and the signals for what has been stored.
//
// Tokens are divided among the blocks; block b of a rank handles the tokens that block b of any
// other rank has. Its warps take tokens one after the other from a queue; some send while others
// handle what has arrived, stage by stage:
//   1. A warp takes a job (a token, or a part of one) and stores its data at the peers.
//   2. The warp that finishes the last job of a stage makes a fence and signals the stage to all
//      ranks (Signals).
//   3. A receiving warp waits for the stage of its next job, which acquires the data.
// The Gate keeps a rank from storing before the peers have entered the operation, and so have read
// the last one's data. Thresholds: not measured by themselves.
#pragma once
#include "tokens/shuffle.cuh"

constexpr u32 kStageTokens = 16;  // least tokens of a block and source; a stage ends with a signal
constexpr u32 kMostStages = 32;   // stages of a block
constexpr u32 kMostParts = 8;     // parts of a token

// This block's tokens: a range, so that the blocks' tokens follow each other.
struct Range {
    i64 begin = 0, end = 0;

    Range() = default;
    __device__ explicit Range(i64 tokens) {
        const i64 each = (u32(tokens) + gridDim.x - 1) / gridDim.x;  // there are fewer than 2^31
        begin = i64(smaller(u64(each) * blockIdx.x, u64(tokens)));
        end = i64(smaller(u64(begin + each), u64(tokens)));
    }

    __device__ u32 length() const { return u32(end - begin); }
};

// A thread of the warps that share a token's row: for (i = member; i < packs; i += members).
struct Share {
    u32 member, members;
};

// The jobs of a block: tokens of some sources, or parts of tokens if these are few. Each source has as many jobs as the
// source with most tokens, so a job may have no token.
struct Jobs {
    const u32 sources, tokens, stage_tokens, parts;

    // `longest`: the most tokens of a rank in this block, so that all ranks compute the same
    // stages.
    __device__ Jobs(u32 sources, u32 tokens, u32 longest)
        : sources(sources),
          tokens(tokens),
          stage_tokens(stage_of(longest)),
          parts(parts_of(sources * tokens)) {}

    __device__ u32 count() const { return sources * tokens * parts; }
    __device__ u32 source(u32 job) const { return job / parts % sources; }
    __device__ u32 token(u32 job) const { return job / (parts * sources); }
    __device__ u32 stage(u32 job) const { return token(job) / stage_tokens; }
    __device__ Share share(u32 job) const {
        return Share{job % parts * 32 + threadIdx.x % 32, parts * 32};
    }
    __device__ u32 stages() const { return (tokens + stage_tokens - 1) / stage_tokens; }

    // The number of jobs in a stage.
    __device__ u32 in_stage(u32 stage) const {
        return u32(smaller(stage_tokens, tokens - stage * stage_tokens)) * sources * parts;
    }

  private:
    static __device__ u32 stage_of(u32 longest) {
        const u32 least = (longest + kMostStages - 1) / kMostStages;
        return least > kStageTokens ? least : kStageTokens;
    }
    static __device__ u32 parts_of(u32 tokens) {
        const u32 warps = blockDim.x / 32;
        return tokens == 0 || tokens >= warps ? 1 : u32(smaller(warps / tokens, kMostParts));
    }
};

// The jobs of each half, which warps of a block take one after the other, so that none waits for a
// warp whose token has many rows. In shared memory.
struct Queue {
    u32 taken[2];           // jobs taken of kSend, of kReceive
    u32 left[kMostStages];  // jobs of each stage still to be done, and 1 for the signal of the
                            // previous stage

    // All threads.
    __device__ void begin(const Jobs& sent) {
        if (threadIdx.x < 2) taken[threadIdx.x] = 0;
        for (u32 stage = threadIdx.x; stage < sent.stages(); stage += blockDim.x)
            left[stage] = sent.in_stage(stage) + (stage > 0);
        __syncthreads();
    }

    // All lanes of a warp, as in the following.
    __device__ u32 take(Phase half) {
        u32 job = 0;
        if (threadIdx.x % 32 == 0) job = atomicAdd(&taken[half - 1], 1u);
        return __shfl_sync(0xffffffffu, job, 0);
    }

    // Counts a finished job, or the signal of the previous stage. Returns whether the stage is
    // complete.
    __device__ bool finish(u32 stage) {
        __syncwarp();
        u32 before = 0;
        if (threadIdx.x % 32 == 0) before = atomic_add_block(&left[stage], ~0u);
        before = __shfl_sync(0xffffffffu, before, 0);
        __syncwarp();
        return before == 1;
    }
};

// The most tokens of a rank that are this block's. All lanes of a warp.
__device__ __forceinline__ u32 longest_range(const i64* tokens, int size) {
    const int lane = int(threadIdx.x % 32);
    return __reduce_max_sync(kWholeWarp, lane < size ? Range(tokens[lane]).length() : 0);
}

// Keeps warps from storing at peers before these have entered the operation: until then they may
// read the last one's data. A warp waits once it has something to store.
class Gate {
    const Channel& channel;
    bool is_open;

  public:
    __device__ Gate(const Channel& channel, bool is_open) : channel(channel), is_open(is_open) {}

    // All lanes of a warp. False: leave.
    __device__ bool pass() {
        if (is_open) return true;
        const int peer = int(threadIdx.x % 32);
        is_open = __all_sync(
            kWholeWarp, !channel.is_peer(peer) || channel.wait_for_entered(peer, channel.epoch));
        __syncwarp();
        return is_open;
    }
};

// Whether this warp begins with what arrives, not with sending. If both halves are in this launch
// and there are several stages, `sending` of kMaxWarps warps send first; of fewer warps the same
// share, at least one.
__device__ __forceinline__ bool receives_first(i64 phases, u32 sending, u32 stages) {
    const u32 warps = blockDim.x / 32, senders = (warps * sending + kMaxWarps - 1) / kMaxWarps;
    return is_whole(phases) && stages > 1 && warps > 1 &&
        threadIdx.x / 32 >= smaller(senders, warps - 1);
}

// Signals of what a block has done in this operation. They use the words in which other operations
// count chunks (ChannelControl::head), so Channel::scrub clears them. Ring 0: how many stages block
// b of rank s has stored here. Ring 1: this rank's block b has counted.
struct Signals {
    const Team& team;
    const u32 epoch;

    // After a barrier of the block.
    __device__ void signal_counted() const {
        if (threadIdx.x != 0) return;
        fence_sys();
        st_relaxed_sys(word(1, team.rank, int(blockIdx.x), team.rank), mark(1));
    }

    // All threads wait for this rank's other blocks.
    __device__ bool await_counted() const {
        bool ok = true;
        for (u32 block = threadIdx.x; ok && block < gridDim.x; block += blockDim.x)
            ok = wait(1, int(block), team.rank, 1);
        return Channel::everyone(ok);
    }

    // A warp has done a job of a stage: signals the stages that are now complete to all ranks, in
    // order.
    __device__ void finish(Queue& queue, u32 stage, u32 stages) const {
        for (bool last = queue.finish(stage); last; last = ++stage < stages && queue.finish(stage))
            signal_stored(stage + 1);
    }

    // All lanes of a warp: signals to all ranks, this one too, how many stages are stored.
    __device__ void signal_stored(u32 stages) const {
        const int rank = int(threadIdx.x % 32);
        if (rank >= team.size) return;
        fence_sys();
        st_relaxed_sys(word(0, rank, int(blockIdx.x), team.rank), mark(stages));
    }

    // A warp waits until this block of every rank has stored needed(source) stages. False: leave.
    template <class Needed>
    __device__ bool await_stored(Needed needed) const {
        const int source = int(threadIdx.x % 32);
        const i64 stages = source < team.size ? needed(source) : 0;
        const bool ok =
            __all_sync(0xffffffffu, stages == 0 || wait(0, int(blockIdx.x), source, stages));
        __syncwarp();
        return ok;
    }

  private:
    __device__ u64 mark(i64 count) const { return (u64(epoch) << 32) + u64(count); }
    __device__ u64* word(int ring, int holder, int block, int source) const {
        return &channel_control(team, holder, block)->head[ring][source];
    }
    __device__ bool wait(int ring, int block, int source, i64 count) const {
        return wait_for(
            team, word(ring, team.rank, block, source),
            Awaited{epoch, block, source, mark(count), 0});
    }
};
