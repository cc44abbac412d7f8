// A combine of few tokens: what is known of their rows is read at once, then sums leave as packets, and are added up.
#pragma once
#include "few_tokens.cuh"
#include "row_transform.cuh"
#include "sums.cuh"

struct CombineArgs {
    Shuffle shuffle;
    const char* results;  // [capacity] rows
    const u32* ways;      // of the dispatch, as the following
    const i64* token_counts;
    const float* row_weights;
    const u64* routes;
    char* out;  // [token_count] rows
    i64 token_count;
    i64 weighted;  // 0: a plain sum
    TransformArgs transform;  // of results
    i64 phases;
};

struct Known {  // what is read of few tokens before any is sent; [size][few_tokens * k]: of the choices of all ranks
    u32 ways[kMostFewChoices];
    float weights[kMostFewChoices];
    u32 ranks[kMostFewChoices];  // that have rows of a token of this rank, as bits
};

struct CombineLists {  // of each warp, and what they share, in shared memory
    Queue queue;
    Rows rows[kMaxWarps];
    float weights[kMaxWarps][kMaxChoices];
    const char* parts[kMaxWarps][kMaxRanks];  // what comes back of a token
};

__device__ __forceinline__ float weight_of(const CombineArgs& args, u32 row) { return args.weighted ? args.row_weights[row] : 1.0f; }

// Packs i, i + 32 … of the sum over a token's rows here; `kWhole`: the row has them all.
template <class T, class Shape, class Address, class Transform, bool kWhole>
__device__ __forceinline__ Sums<T, Shape> folded(const CombineArgs& args, const CombineLists& lists, int count, u32 i) {
    const u32 packs = u32(packs_of<T>(args.shuffle.hidden)), row_nbytes = packs * kPackNbytes, warp = threadIdx.x / 32;
    Sums<T, Shape> sums;
    sums.template add<Address, kWhole>(
        count, i, packs, [&](int s) { return args.results + u64(lists.rows[warp].row[s]) * row_nbytes; },
        [&](int s) { return lists.weights[warp][s]; },
        [&](int s, u32 pack_number, Pack pack) {
            const i64 row = lists.rows[warp].row[s], column = i64(pack_number) * Elements<T>::kCount;
            return kWhole || pack_number < packs ? Transform::template pack<T>(args.transform, pack, row, column) : pack;
        });
    return sums;
}

// Where choice `j` of those that few tokens have on all ranks is here; what there is of no token may be anything.
__device__ __forceinline__ u32 few_way(const CombineArgs& args, u32 j) {
    const u32 each = u32(args.shuffle.few_tokens * args.shuffle.k), source = j / each;
    return args.ways[source * args.shuffle.max_tokens * args.shuffle.k + (j - source * each)];
}

__device__ __forceinline__ u32 few_choices(const Shuffle& shuffle) {
    return u32(shuffle.team.size) * u32(shuffle.few_tokens) * u32(shuffle.k);
}

// Ways and weights of few tokens, by all threads at once; `early` is the way of the choice with the thread's number.
__device__ void know_rows(const CombineArgs& args, u32 early, Known& known) {
    for (u32 j = threadIdx.x; j < few_choices(args.shuffle); j += blockDim.x) {
        const u32 way = j < blockDim.x ? early : few_way(args, j);
        known.ways[j] = way;
        known.weights[j] = way < args.shuffle.capacity ? weight_of(args, way) : 0.0f;
    }
}

// From which ranks results of this rank's tokens come.
__device__ void know_ranks(const CombineArgs& args, Known& known) {
    for (u32 token = threadIdx.x; token < u32(args.token_count); token += blockDim.x) {
        u32 ranks = 0;
        for (u32 c = 0; c < u32(args.shuffle.k); ++c) {
            const u64 route = args.routes[token * u32(args.shuffle.k) + c];
            if (route != kNoRow) ranks |= 1u << route_rank(route);
        }
        known.ranks[token] = ranks;
    }
}

template <class T, class Transform>
__device__ void send_steps(
    const CombineArgs& args, const FewTokens& few, const i64* tokens, const Known& known, CombineLists& lists) {
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, k = u32(args.shuffle.k);
    few.share(tokens, [&](int source, const FewTokens::Step& step) {
        const u32 first = (u32(source) * u32(args.shuffle.few_tokens) + u32(step.token)) * k;
        const u64 i = step.first + lane;
        const int count = lists.rows[warp].list(
            int(k), [&](int c) { return known.ways[first + c]; },
            [&](int number, int c, u32) { lists.weights[warp][number] = known.weights[first + c]; });
        if (count == 0 || i >= few.row_packs) return;
        const Pack sum = is_aligned(args.results)
                             ? folded<T, Few, Aligned, Transform, true>(args, lists, count, u32(i)).rounded(0)
                             : folded<T, One, Unaligned, Transform, true>(args, lists, count, u32(i)).rounded(0);
        few.send(source, step.position + 2 * lane, sum);
    });
}

// Adds up the steps that come back for this rank's tokens.
template <class T, class Out>
__device__ void receive_steps(const CombineArgs& args, const FewTokens& few, const Known& known) {
    const Shuffle& shuffle = args.shuffle;
    const u32 lane = threadIdx.x % 32;
    const u64 nbytes = u64(shuffle.hidden) * sizeof(Out);
    for (u32 job = threadIdx.x / 32; job < few.jobs(args.token_count); job += blockDim.x / 32) {
        const FewTokens::Step step = few.step(job);
        const u64 i = step.first + lane;
        const u32 ranks = known.ranks[step.token];
        Sums<T, Few> sums;
        bool ok = i < few.row_packs;
        for (int rank = 0; ok && rank < shuffle.team.size; rank += kSourcesAtOnce) {
            Pack packs[kSourcesAtOnce];
            ok = few.receive_each(ranks, rank, step.position + 2 * lane, packs);
#pragma unroll
            for (int s = 0; s < kSourcesAtOnce; ++s)
                if (ok && (ranks >> (rank + s) & 1)) sums.add(0, packs[s], 1.0f);
        }
        if (ok) sums.template store<Out>(0, args.out + step.token * nbytes, i, nbytes);
    }
}
