// A dispatch of few tokens: choices and tokens leave together as packets, and the receiver finds out where rows belong.
#pragma once
#include "buckets.cuh"

struct Leader {  // where a token's data goes
    Pack* row;
    float* scales;
    int rank;
};

union DispatchList {  // of a warp, in shared memory: it sends, or it receives
    Rows rows;
    Leader leaders[kMaxRanks];
};

__device__ __forceinline__ u64 groups_of(const Shuffle& shuffle) { return (u64(shuffle.hidden) + kGroup - 1) / kGroup; }

// What a lane of a warp sends of one of the block's steps, `job`. Past the row it has zeros, which a group of 8-bit floats looks
// at too, and not what it had of the step before.
template <class From, class To>
__device__ __forceinline__ void load_step(const DispatchArgs& args, const Steps& steps, u32 job, Source<From, To>& source) {
    if (job >= steps.jobs(args.token_count)) return;
    const Steps::Step step = steps.step(job);
    const u64 i = step.first + threadIdx.x % 32, nbytes = u64(args.shuffle.hidden) * sizeof(From);
    if (i < steps.row_packs) source.load(args.tokens + step.token * nbytes, i, is_aligned(args.tokens));
    else if constexpr (sizeof(To) == sizeof(Float8)) source = {};
}

// What a thread needs first: on its way, while the block looks for its epoch.
template <class From, class To, class Transform>
struct Early {
    i64 expert = -1;  // of the choice with the thread's number
    int place = kNoPlace;
    float weight = 1.0f;
    Source<From, To> source;  // of the warp's first step
    Pack pack;                // what becomes of it
    float scale = 0;

    __device__ void load(const DispatchArgs& args, const Steps& steps) {
        if (!args.reuse && threadIdx.x < u32(args.token_count * args.shuffle.k)) {
            expert = expert_of_choice(args, threadIdx.x);
            if (args.weights) weight = args.weights[threadIdx.x];
        }
        load_step(args, steps, threadIdx.x / 32, source);
    }

    // Once the expert is there.
    __device__ void look_up(const DispatchArgs& args) { place = place_of_choice(args, threadIdx.x, expert); }

    // Once the pack of step `job` is there.
    __device__ void round(const DispatchArgs& args, const Steps& steps, u32 job) {
        const Steps::Step step = steps.step(job);
        const u64 i = step.first + threadIdx.x % 32;
        if (job < steps.jobs(args.token_count) && i < steps.row_packs)
            source.template transform<Transform>(args.transform, step.token, i);
        pack = Cast<From, To>::round(source, scale);
    }
};

// Numbers this rank's choices within their buckets, and tells all ranks.
template <class From, class To, class Transform>
__device__ void send_choices(
    const DispatchArgs& args, const FewTokens& few, Table& table, Early<From, To, Transform>& early) {
    const u32 choices = u32(args.token_count * args.shuffle.k);
    const OwnChoices own(table);
    for (u32 i = threadIdx.x; i < choices; i += blockDim.x) {
        own.place[i] = i < blockDim.x ? early.place : place_of_choice(args, i, expert_of_choice(args, i));
        own.bucket[i] = bucket_of_place(args.shuffle, own.place[i]);
    }
    early.round(args, few, threadIdx.x / 32);
    __syncthreads();
    for (u32 i = threadIdx.x; i < choices; i += blockDim.x) {
        const float weight = i < blockDim.x ? early.weight : args.weights ? args.weights[i] : 1.0f;
        u32 number = 0;
#pragma unroll 4
        for (u32 j = 0; j < i; ++j) number += own.bucket[j] == own.bucket[i];
        const u64 word = own.bucket[i] < 0 ? kNoRow : choice_word(u32(own.place[i]), number, weight);
#pragma unroll 1
        for (int rank = 0; rank < args.shuffle.team.size; ++rank) few.send_word(rank, 1 + i, word);
    }
}

// Where this rank's choices went in an earlier dispatch.
template <class From, class To, class Transform>
__device__ void recall_choices(
    const DispatchArgs& args, const FewTokens& few, Table& table, Early<From, To, Transform>& early) {
    for (u32 i = threadIdx.x; i < u32(args.token_count * args.shuffle.k); i += blockDim.x)
        OwnChoices(table).place[i] = args.routes[i] == kNoRow ? kNoPlace : int(route_place(args.routes[i]));
    early.round(args, few, threadIdx.x / 32);
    __syncthreads();
}

// Sends the steps of this block; each warp's first one has been rounded.
template <class From, class To, class Transform>
__device__ void send_steps(
    const DispatchArgs& args, const FewTokens& few, const int* places, Early<From, To, Transform>& early) {
    const Shuffle& shuffle = args.shuffle;
    const u32 lane = threadIdx.x % 32;
    for (u32 job = threadIdx.x / 32; job < few.jobs(args.token_count); job += blockDim.x / 32) {
        const FewTokens::Step step = few.step(job);
        const u64 i = step.first + lane;
        if (job >= blockDim.x / 32) {
            load_step(args, few, job, early.source);
            early.round(args, few, job);
        }
        u32 ranks = 0;
#pragma unroll 8
        for (u32 c = 0; c < u32(shuffle.k); ++c) {
            const int place = places[u32(step.token) * u32(shuffle.k) + c];
            if (place != kNoPlace) ranks |= 1u << place_rank(u32(place));
        }
#pragma unroll 1
        for (int rank = 0; i < few.row_packs && rank < shuffle.team.size; ++rank) {
            if ((ranks >> rank & 1) == 0) continue;
            few.send(rank, step.position + 2 * lane, early.pack);
            if (begins_group<To>(i))
                few.send_word(rank, step.position + 2 * kStepPacks + lane / kGroupLanes, bits_as<u32>(early.scale));
        }
    }
}

// Nothing has been counted yet; a barrier follows.
__device__ void clear_counts(const Shuffle& shuffle, Table& table) {
    if (shuffle.few_tokens == 0) return;  // there may be no room
    for (int i = int(threadIdx.x); i < shuffle.team.size * int(shuffle.buckets); i += int(blockDim.x)) table.few.matrix[i] = 0;
}

// Receives how many tokens all ranks have, and the choices of those that have few; counts these.
__device__ bool receive_choices(const Shuffle& shuffle, const FewTokens& few, Table& table) {
    const u32 size = u32(shuffle.team.size), together = blockDim.x / size;
    const u32 source = threadIdx.x % size, each = u32(shuffle.few_tokens * shuffle.k);
    u32 i = threadIdx.x / size;
    u64 tokens = 0, word = 0;
    bool ok = few.receive_choice(int(source), i, tokens, word);
    if (i == 0) table.tokens[source] = i64(tokens);
    for (const u32 choices = i < together ? few.choices_of(tokens) : 0; ok && i < choices;) {
        table.few.words[source * each + i] = word;
        if (is_choice(word))
            atomicAdd(&table.few.matrix[source * u32(shuffle.buckets) + bucket_of(shuffle, choice_place(word))], 1);
        i += together;
        if (i < choices) ok = few.receive_word(int(source), 1 + i, word);
    }
    return Channel::everyone(ok);
}

// All ranks have few: finds out where the buckets begin.
__device__ void place_few(const Shuffle& shuffle, Table& table) {
    place_buckets(shuffle, table, [&](int b) {
        int sum = 0;
        for (int source = 0; source < shuffle.team.size; ++source) sum += table.few.matrix[source * int(shuffle.buckets) + b];
        return sum;
    });
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

// What there is of the first step that a warp is to receive, fetched before anybody knows where it belongs.
struct FirstStep {
    int source = -1;
    u32 job = 0;
    FewTokens::StepPackets found;

    template <class To>
    __device__ void look(const FewTokens& few, const i64* tokens) {
        const u32 size = u32(few.shuffle.team.size), turn = threadIdx.x / 32;
        job = turn / size;
        if (job >= few.jobs(few.most_of(tokens))) return;
        source = int(turn - job * size);
        const FewTokens::Step step = few.step(job);
        if (step.first + threadIdx.x % 32 < few.row_packs)
            found = few.look(source, step.position, begins_group<To>(step.first + threadIdx.x % 32));
    }
};

// Puts the steps of this block into their rows.
template <class To>
__device__ void receive_steps(
    const DispatchArgs& args, const FewTokens& few, const Table& table, const FirstStep& first, Rows& list) {
    const Shuffle& shuffle = args.shuffle;
    const int me = shuffle.team.rank;
    const u32 lane = threadIdx.x % 32;
    Pack* rows = reinterpret_cast<Pack*>(shuffle.rows[me]);
    float* scales = reinterpret_cast<float*>(shuffle.scales[me]);
    bool begun = false;
    few.share(table.tokens, [&](int source, const FewTokens::Step& step) {
        const u64 i = step.first + lane;
        const auto way = [&](int c) { return few_way(args, table, source, step.token, c); };
        const int count = list.list(int(shuffle.k), way, [](int, int, u32) {});
        const bool looked = !begun && source == first.source && step.position == few.step(first.job).position;
        begun = true;
        if (count == 0 || i >= few.row_packs) return;
        const bool begins = begins_group<To>(i);
        Pack pack;
        float scale = 0;
        const auto found = looked ? first.found : few.look(source, step.position, begins);
        if (!few.receive_step(source, step.position, begins, found, pack, scale)) return;
#pragma unroll 1
        for (int r = 0; r < count; ++r) {
            rows[list.row[r] * few.row_packs + i] = pack;
            if (begins) scales[list.row[r] * groups_of(shuffle) + i / kGroupLanes] = scale;
        }
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
__device__ void receive_few(const DispatchArgs& args, const FewTokens& few, Table& table, DispatchList* lists) {
    const Shuffle& shuffle = args.shuffle;
    FirstStep first;
    first.look<To>(few, table.tokens);
    if (!args.reuse) place_few(shuffle, table);
    receive_steps<To>(args, few, table, first, lists[threadIdx.x / 32].rows);
    if (args.reuse) return;
    write_few(args, table);
    if (is_scribe())
        write_counts(args, table, [&](int source, int b) { return table.few.matrix[source * shuffle.buckets + b]; });
}
