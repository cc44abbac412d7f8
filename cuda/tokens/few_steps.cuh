// Rows of few tokens travel in *steps*: what one warp moves at a time, a row of lines (line.cuh) of
// 30 packs, or of 24 packs of 8-bit floats and one of their scales. Steps are dealt out to the
// blocks in turn, so that many blocks move one token. A step goes from block b to block b. A block
// reads what it sends to its own rank after a barrier, for lines are whole only between GPUs.
#pragma once
#include "elements/cast.cuh"
#include "protocol/line.cuh"
#include "tokens/shuffle.cuh"

template <class T>
constexpr u32 kStepPacks = sizeof(T) == sizeof(Float8) ? 24 : kRowPacks;

struct Step {
    u32 token = 0;
    u32 first = 0;  // pack of the token's row
    u32 row = 0;    // row of lines in a slot

    __device__ u64 dependency() const { return token ^ first ^ row; }
};

// The steps of a block. A warp's first step is computed before the previous kernel has ended: a
// division takes as long as a dozen other instructions.
struct Steps {
    const Shuffle& shuffle;
    const u32 row_packs;   // packs of a row that travels: rows there, results back
    const u32 step_packs;  // at most, of a step of it

    // False, also for no tokens, if there is no room for few tokens.
    __device__ bool are_few(i64 tokens) const {
        return tokens <= shuffle.few_tokens && shuffle.few_tokens > 0;
    }

    // Whether this block has a step `job` of so many tokens.
    __device__ bool has(u32 job, i64 tokens) const { return number(job) < u32(tokens) * steps(); }

    __device__ Step step(u32 job) const {
        const u32 token = number(job) / steps();
        return Step{token, (number(job) - token * steps()) * step_packs, job};
    }

    // Whether this lane has a pack of the step.
    __device__ bool holds(const Step& step) const {
        const u32 lane = threadIdx.x % 32;
        return lane < step_packs && step.first + lane < row_packs;
    }

    // A warp's turn at the steps of some source.
    struct Turn {
        u32 job = 0, source = 0;
        Step step;

        Turn() = default;
        __device__ Turn(const Steps& steps, u32 turn)
            : job(turn / u32(steps.shuffle.team.size)),
              source(turn - job * u32(steps.shuffle.team.size)),
              step(steps.step(job)) {}

        __device__ u64 dependency() const { return u64(source) << 32 ^ step.dependency(); }
    };

    __device__ Turn first_turn() const { return Turn(*this, threadIdx.x / 32); }

    // Warps of the block take turns: each(source, step) is called for a step. `most`: the largest
    // of `tokens`.
    template <class Each>
    __device__ void share(const i64* tokens, i64 most, Turn turn, Each each) const {
        const u32 size = u32(shuffle.team.size), warps = blockDim.x / 32;
        for (; has(turn.job, most); turn = Turn(*this, turn.job * size + turn.source + warps))
            if (turn.step.token < tokens[turn.source]) each(int(turn.source), turn.step);
    }

    // The most tokens of a rank.
    __device__ i64 most_of(const i64* tokens) const {
        i64 most = 0;
#pragma unroll 4
        for (int rank = 0; rank < shuffle.team.size; ++rank)
            most = tokens[rank] > most ? tokens[rank] : most;
        return most;
    }

  private:
    __device__ u32 steps() const { return (row_packs + step_packs - 1) / step_packs; }
    // of all blocks' steps
    __device__ static u32 number(u32 job) { return blockIdx.x + job * gridDim.x; }
};

// The part of a row of lines that lane l stores, where lane l has pack l of 30; and the inverse.
__device__ __forceinline__ Pack part_of_row(Pack pack, u32 epoch) {
    const u32 lane = threadIdx.x % 32, from = pack_of_lane(lane);
    const u64 x = __shfl_sync(kWholeWarp, pack.x, int(from)),
              y = __shfl_sync(kWholeWarp, pack.y, int(from));
    return Pack{lane % 16 == 15 ? y : x, lane % 8 == 7 ? epoch : y};
}
__device__ __forceinline__ Pack pack_of_row(Pack part) {
    const u32 lane = threadIdx.x % 32, half = lane / 15 * 16, of_half = lane % 15;
    const u32 from = half + (of_half < 7 ? of_half : of_half == 14 ? 7 : of_half + 1);
    const u64 x = __shfl_sync(kWholeWarp, part.x, int(from % 32)),
              y = __shfl_sync(kWholeWarp, part.y, int(from % 32));
    const u64 split = __shfl_sync(kWholeWarp, part.x, int((half + 15) % 32));
    return Pack{x, of_half == 14 ? split : y};
}

// The scales of a step of 8-bit floats are the pack behind its data. All lanes of a warp.
__device__ __forceinline__ Pack with_scales(Pack pack, float scale) {
    const u32 bits = bits_as<u32>(scale);
    u64 words[3];
#pragma unroll
    for (int group = 0; group < 3; ++group)
        words[group] = __shfl_sync(kWholeWarp, bits, group * kGroupLanes);
    return threadIdx.x % 32 == kStepPacks<Float8> ? Pack{words[1] << 32 | words[0], words[2]}
                                                  : pack;
}
__device__ __forceinline__ float scale_of(Pack pack) {
    const u64 x = __shfl_sync(kWholeWarp, pack.x, int(kStepPacks<Float8>)),
              y = __shfl_sync(kWholeWarp, pack.y, int(kStepPacks<Float8>));
    const u32 group = threadIdx.x % 32 / kGroupLanes;
    return bits_as<float>(group == 0 ? u32(x) : group == 1 ? u32(x >> 32) : u32(y));
}
