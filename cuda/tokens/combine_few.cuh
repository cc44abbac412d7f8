// A combine of few tokens: ways and weights of all rows are read at once, then sums leave as lines,
// and are added up.
//
//   1. read_rows reads ways and weights of all ranks' choices, read_ranks the ranks of this rank's
//      rows; barriers follow.
//   2. send_steps sums a step over a token's rows here, and sends it to the token's rank.
//   3. receive_steps adds the steps that come back, in rank order, and stores the result.
#pragma once
#include "tokens/few_tokens.cuh"
#include "elements/row_transform.cuh"
#include "tokens/stages.cuh"
#include "elements/sums.cuh"

struct CombineArgs {
    Shuffle shuffle;
    const char* results;  // [capacity] rows
    const u32* ways;      // these and the following are the dispatch's
    const i64* token_counts;
    const float* row_weights;
    const u64* routes;
    char* out;  // [token_count] rows
    i64 token_count;
    i64 weighted;  // 0: a plain sum
    TransformArgs transform;  // for results
    i64 phases;
};

struct FewRows {  // of few tokens, read before any is sent: [size][few_tokens * k], of the choices
                  // of all ranks
    u32 ways[kMostFewChoices];
    float weights[kMostFewChoices];
    u32 ranks[kMostFewChoices];  // the ranks that have rows of a token of this rank, as bits
};

struct CombineLists {  // lists of each warp, and shared ones, in shared memory
    Queue queue;
    Rows rows[kMaxWarps];
    float weights[kMaxWarps][kMaxChoices];
    const char* parts[kMaxWarps][kMaxRanks];  // the sums of a token that come back
};

__device__ __forceinline__ float weight_of(const CombineArgs& args, u32 row) {
    return args.weighted ? args.row_weights[row] : 1.0f;
}

// Packs i, i + 32 … of the sum over a token's rows here; kWhole: all of them are in the row.
template <class T, class Shape, class Address, class Transform, bool kWhole>
__device__ __forceinline__ Sums<T, Shape> folded(
    const CombineArgs& args, const CombineLists& lists, int count, u32 i) {
    const u32 packs = u32(packs_of<T>(args.shuffle.hidden)), row_nbytes = packs * kPackNbytes,
              warp = threadIdx.x / 32;
    Sums<T, Shape> sums;
    sums.template add<Address, kWhole>(
        count, i, packs,
        [&](int s) { return args.results + u64(lists.rows[warp].row[s]) * row_nbytes; },
        [&](int s) { return lists.weights[warp][s]; },
        [&](int s, u32 pack_number, Pack pack) {
            const i64 row = lists.rows[warp].row[s],
                      column = i64(pack_number) * Elements<T>::kCount;
            return kWhole || pack_number < packs
                ? Transform::template pack<T>(args.transform, pack, row, column)
                : pack;
        });
    return sums;
}

__device__ __forceinline__ u32 few_choices(const Shuffle& shuffle) {
    return u32(shuffle.team.size) * u32(shuffle.few_tokens) * u32(shuffle.k);
}

// The index in `ways` of choice `j` of few tokens of all ranks. Entries of tokens that do not exist
// are undefined.
__device__ __forceinline__ u64 few_choice(const Shuffle& shuffle, u32 j) {
    const u32 each = u32(shuffle.few_tokens) * u32(shuffle.k), source = each > 0 ? j / each : 0;
    return source * u64(shuffle.max_tokens * shuffle.k) + (j - source * each);
}

// What a thread needs first. It is loaded while the block reads its epoch.
struct EarlyWay {
    u64 choice = 0;      // index in `ways` of the choice with the thread's number
    u32 way = kNoWay;    // way of that choice
    u64 route = kNoRow;  // route of this rank's choice with the thread's number

    __device__ void load(const CombineArgs& args) {
        if (threadIdx.x < few_choices(args.shuffle)) way = args.ways[choice];
        if (threadIdx.x < u32(args.token_count) * u32(args.shuffle.k))
            route = args.routes[threadIdx.x];
    }
};

// All threads read ways and weights of few tokens; a barrier follows.
__device__ void read_rows(const CombineArgs& args, const EarlyWay& early, FewRows& few_rows) {
#pragma unroll 1
    for (u32 j = threadIdx.x; j < few_choices(args.shuffle); j += blockDim.x) {
        const u32 way = j < blockDim.x ? early.way : args.ways[few_choice(args.shuffle, j)];
        few_rows.ways[j] = way;
        few_rows.weights[j] = way < args.shuffle.capacity ? weight_of(args, way) : 0.0f;
    }
}

// Sets the ranks of all tokens to none; a barrier follows.
__device__ void clear_ranks(FewRows& few_rows, u32 tokens) {
#pragma unroll 1
    for (u32 token = threadIdx.x; token < tokens; token += blockDim.x) few_rows.ranks[token] = 0;
}

// Reads from which ranks sums of this rank's tokens come; a barrier follows.
__device__ void read_ranks(
    const CombineArgs& args, const EarlyWay& early, bool sent_early, FewRows& few_rows) {
    const u32 k = u32(args.shuffle.k);
#pragma unroll 1
    for (u32 i = threadIdx.x; i < u32(args.token_count) * k; i += blockDim.x) {
        const u64 route = sent_early && i < blockDim.x ? early.route : args.routes[i];
        if (route != kNoRow) atomicOr(&few_rows.ranks[i / k], 1u << route_rank(route));
    }
}

template <class T, class Transform>
__device__ void send_steps(
    const CombineArgs& args, const FewTokens& few, const Steps::Turn& turn, const i64* tokens,
    i64 most, const FewRows& few_rows, CombineLists& lists) {
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, k = u32(args.shuffle.k);
    few.share(tokens, most, turn, [&](int source, const Step& step) {
        const u32 first = (u32(source) * u32(args.shuffle.few_tokens) + step.token) * k;
        const u32 i = step.first + lane;
        const int count = lists.rows[warp].list(
            int(k), [&](int c) { return few_rows.ways[first + c]; },
            [&](int number, int c, u32) {
                lists.weights[warp][number] = few_rows.weights[first + c];
            });
        if (count == 0) return;
        Pack sum{0, 0};
        if (few.holds(step))
            sum = is_aligned(args.results)
                ? folded<T, Few, Aligned, Transform, true>(args, lists, count, i).rounded(0)
                : folded<T, One, Unaligned, Transform, true>(args, lists, count, i).rounded(0);
        few.send_step(source, step, part_of_row(sum, few.epoch));
    });
}

// Adds up the steps that come back for this rank's tokens.
template <class T, class Out>
__device__ void receive_steps(
    const CombineArgs& args, const FewTokens& few, const Step& first, const FewRows& few_rows) {
    const Shuffle& shuffle = args.shuffle;
    const u32 lane = threadIdx.x % 32, warps = blockDim.x / 32;
    const u64 nbytes = u64(shuffle.hidden) * sizeof(Out);
    for (u32 job = threadIdx.x / 32; few.has(job, args.token_count); job += warps) {
        const Step step = job < warps ? first : few.step(job);
        const u32 i = step.first + lane;
        const u32 ranks = few_rows.ranks[step.token];
        Sums<T, Few> sums;
        bool ok = true;
        for (int rank = 0; ok && rank < shuffle.team.size; rank += kSourcesAtOnce) {
            FewTokens::Coming<kSourcesAtOnce> coming(few, ranks, rank, step);
            ok = few.receive(coming, rank);
#pragma unroll
            for (int s = 0; s < kSourcesAtOnce; ++s)
                if (ok && (ranks >> (rank + s) & 1)) sums.add(0, coming.packs[s], 1.0f);
        }
        if (ok && few.holds(step))
            sums.template store<Out>(0, args.out + step.token * nbytes, i, nbytes);
    }
}
