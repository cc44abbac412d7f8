// A dispatch of few tokens: choices and tokens leave together as packets, and the receiver finds out where rows belong.
#pragma once
#include "buckets.cuh"

struct Leader {  // where a token's data goes
    Pack* row;
    float* scales;
};

union DispatchList {  // of a warp, in shared memory: it sends, or it receives
    Rows rows;
    Leader leaders[kMaxRanks];
};

__device__ __forceinline__ u64 groups_of(const Shuffle& shuffle) { return (u64(shuffle.hidden) + kGroup - 1) / kGroup; }

// Numbers this rank's choices within their buckets, and tells all ranks.
__device__ void send_choices(const DispatchArgs& args, const FewTokens& few, Table& table) {
    const int choices = int(args.token_count * args.shuffle.k);
    int* buckets = table.few.matrix;
    for (int i = int(threadIdx.x); i < choices; i += int(blockDim.x)) {
        u32 place = 0;
        buckets[i] = bucket_of_choice(args, i, place);
        const float weight = args.weights ? args.weights[i] : 1.0f;
        table.few.words[i] = buckets[i] < 0 ? kNoRow : choice_word(place, 0, weight);
    }
    __syncthreads();
    for (int i = int(threadIdx.x); i < choices; i += int(blockDim.x)) {
        u32 number = 0;
        for (int j = 0; j < i; ++j) number += buckets[j] == buckets[i];
        const u64 word = table.few.words[i];
#pragma unroll 1
        for (int rank = 0; rank < args.shuffle.team.size; ++rank)
            few.send_word(rank, 1 + u32(i), is_choice(word) ? word + number : word);
    }
}

// The same of an earlier dispatch, for this rank alone.
__device__ void recall_choices(const DispatchArgs& args, Table& table) {
    for (int i = int(threadIdx.x); i < int(args.token_count * args.shuffle.k); i += int(blockDim.x))
        table.few.words[i] = args.routes[i] == kNoRow ? kNoRow : choice_word(route_place(args.routes[i]), 0, 0.0f);
    __syncthreads();
}

// What a lane of a warp sends of one of the block's steps, `job`.
template <class From, class To, class Transform>
__device__ __forceinline__ void load_step(const DispatchArgs& args, const FewTokens& few, u32 job, Source<From, To>& source) {
    if (job >= few.jobs(args.token_count)) return;
    const FewTokens::Step step = few.step(job);
    const u64 i = step.first + threadIdx.x % 32, nbytes = u64(args.shuffle.hidden) * sizeof(From);
    if (i >= few.row_packs) return;
    source.load(args.tokens + step.token * nbytes, i, is_aligned(args.tokens));
    source.template transform<Transform>(args.transform, step.token, i);
}

// Sends the steps of this block; each warp's first one has been loaded.
template <class From, class To, class Transform>
__device__ void send_steps(const DispatchArgs& args, const FewTokens& few, const Table& table, Source<From, To> source) {
    const Shuffle& shuffle = args.shuffle;
    const u32 lane = threadIdx.x % 32;
    for (u32 job = threadIdx.x / 32; job < few.jobs(args.token_count); job += blockDim.x / 32) {
        const FewTokens::Step step = few.step(job);
        const u64 i = step.first + lane;
        if (job >= blockDim.x / 32) load_step<From, To, Transform>(args, few, job, source);
        u32 ranks = 0;
#pragma unroll 1
        for (int c = 0; c < shuffle.k; ++c) {
            const u64 word = table.few.words[step.token * shuffle.k + c];
            if (is_choice(word)) ranks |= 1u << place_rank(choice_place(word));
        }
        float scale = 0;
        const Pack pack = Cast<From, To>::round(source, scale);
#pragma unroll 1
        for (int rank = 0; i < few.row_packs && rank < shuffle.team.size; ++rank) {
            if ((ranks >> rank & 1) == 0) continue;
            few.send(rank, step.position + 2 * lane, pack);
            if (begins_group<To>(i))
                few.send_word(rank, step.position + 2 * kStepPacks + lane / kGroupLanes, bits_as<u32>(scale));
        }
    }
}

// Receives all ranks' choices, counts them, and finds out where the buckets begin.
__device__ bool receive_choices(const Shuffle& shuffle, const FewTokens& few, Table& table) {
    const int each = int(shuffle.few_tokens * shuffle.k), buckets = int(shuffle.buckets);
    int* matrix = table.few.matrix;
    for (int i = int(threadIdx.x); i < shuffle.team.size * buckets; i += int(blockDim.x)) matrix[i] = 0;
    __syncthreads();
    bool ok = true;
    for (int j = int(threadIdx.x); ok && j < each * shuffle.team.size; j += int(blockDim.x)) {
        const int source = j / each, i = j % each;
        if (i >= table.tokens[source] * shuffle.k) continue;
        u64 word = 0;
        ok = few.receive_word(source, 1 + u32(i), word);
        table.few.words[j] = word;
        if (ok && is_choice(word)) atomicAdd(&matrix[source * buckets + bucket_of(shuffle, choice_place(word))], 1);
    }
    ok = Channel::everyone(ok);
    for (int b = int(threadIdx.x); b < buckets; b += int(blockDim.x)) {
        table.sum[b] = 0;
        for (int source = 0; source < shuffle.team.size; ++source) table.sum[b] += matrix[source * buckets + b];
    }
    __syncthreads();
    if (ok) place_buckets(shuffle, table);
    return ok;
}

// The row that a choice of `source` becomes on its rank; kNoWay: there is no room.
__device__ u32 row_of(const Shuffle& shuffle, const Table& table, int source, u64 word) {
    if (!is_choice(word)) return kNoWay;
    const int bucket = bucket_of(shuffle, choice_place(word));
    int row = table.count[bucket] + int(choice_number(word));
#pragma unroll 1
    for (int before = 0; before < source; ++before) row += table.few.matrix[before * shuffle.buckets + bucket];
    return row < table.limit[bucket] ? u32(row) : kNoWay;
}

// What choice `c` of a token has on this rank.
__device__ u32 few_way(const DispatchArgs& args, const Table& table, int source, i64 token, int c) {
    const Shuffle& shuffle = args.shuffle;
    if (args.reuse) return args.ways[(source * shuffle.max_tokens + token) * shuffle.k + c];
    const u64 word = table.few.words[(source * shuffle.few_tokens + token) * shuffle.k + c];
    if (!is_choice(word) || place_rank(choice_place(word)) != shuffle.team.rank) return kNoWay;
    return row_of(shuffle, table, source, word);
}

// Puts the steps of this block into their rows.
template <class To>
__device__ void receive_steps(const DispatchArgs& args, const FewTokens& few, const Table& table, Rows& list) {
    const Shuffle& shuffle = args.shuffle;
    const int me = shuffle.team.rank;
    const u32 lane = threadIdx.x % 32;
    Pack* rows = reinterpret_cast<Pack*>(shuffle.rows[me]);
    float* scales = reinterpret_cast<float*>(shuffle.scales[me]);
    few.share(table.tokens, [&](int source, u32 job) {
        const FewTokens::Step step = few.step(job);
        const u64 i = step.first + lane;
        const int count = list.list(int(shuffle.k), [&](int c) { return few_way(args, table, source, step.token, c); });
        if (count == 0 || i >= few.row_packs) return;
        Pack pack;
        if (!few.receive(source, step.position + 2 * lane, pack)) return;
#pragma unroll 1
        for (int r = 0; r < count; ++r) rows[list.row[r] * few.row_packs + i] = pack;
        u64 scale = 0;
        if (!begins_group<To>(i)) return;
        if (!few.receive_word(source, step.position + 2 * kStepPacks + lane / kGroupLanes, scale)) return;
#pragma unroll 1
        for (int r = 0; r < count; ++r)
            scales[list.row[r] * groups_of(shuffle) + i / kGroupLanes] = bits_as<float>(u32(scale));
    });
}

// The handle's arrays: ways of all tokens here, experts and weights of the rows, routes of this rank's tokens.
__device__ void write_few(const DispatchArgs& args, const Table& table) {
    const Shuffle& shuffle = args.shuffle;
    const u32 each = u32(shuffle.few_tokens * shuffle.k);
    for (u32 j = blockIdx.x * blockDim.x + threadIdx.x; j < each * u32(shuffle.team.size); j += gridDim.x * blockDim.x) {
        const int source = int(j / each);
        const u32 i = j % each;
        if (i >= table.tokens[source] * shuffle.k) continue;
        const u64 word = table.few.words[j];
        const u32 row = row_of(shuffle, table, source, word);
        const bool here = row != kNoWay && place_rank(choice_place(word)) == shuffle.team.rank;
        args.ways[source * shuffle.max_tokens * shuffle.k + i] = here ? row : kNoWay;
        if (here) {
            args.row_experts[row] = int(place_local(choice_place(word)));
            args.row_weights[row] = choice_weight(word);
        }
        if (source == shuffle.team.rank) args.routes[i] = row == kNoWay ? kNoRow : make_route(row, choice_place(word));
    }
}

template <class To>
__device__ bool receive_few(const DispatchArgs& args, const FewTokens& few, Table& table, DispatchList* lists) {
    const Shuffle& shuffle = args.shuffle;
    if (!args.reuse && !receive_choices(shuffle, few, table)) return false;
    receive_steps<To>(args, few, table, lists[threadIdx.x / 32].rows);
    if (args.reuse) return true;
    write_few(args, table);
    if (is_scribe())
        write_counts(args, table, [&](int source, int b) { return table.few.matrix[source * shuffle.buckets + b]; });
    return true;
}
