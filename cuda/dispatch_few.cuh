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

// The shuffle's places are kept in shared memory, as far as threads have fetched them: looked up there, a choice's takes 0.3 us
// less.
constexpr u32 kPlacesEach = 2;

__device__ __forceinline__ bool are_near(const Shuffle& shuffle) {
    const u32 most = kPlacesEach * blockDim.x;
    return u64(shuffle.experts * shuffle.replicas) <= (most < kMostNearPlaces ? most : kMostNearPlaces);
}

// What a lane of a warp sends of a step. Past the row it has zeros, which a group of 8-bit floats looks at too, and not what it
// had of the step before.
template <class From, class To>
__device__ __forceinline__ void load_step(const DispatchArgs& args, const Steps& steps, const Step& step, Source<From, To>& source) {
    const u64 i = step.first + threadIdx.x % 32, nbytes = u64(args.shuffle.hidden) * sizeof(From);
    if (steps.holds(step)) source.load(args.tokens + step.token * nbytes, i, is_aligned(args.tokens));
    else if constexpr (sizeof(To) == sizeof(Float8)) source = {};
}

// What a thread needs first: on its way, while the block looks for its epoch.
template <class From, class To, class Transform>
struct Early {
    Step step;                // the warp's first
    bool has_step = false;
    i64 expert = -1;          // of the choice with the thread's number
    float weight = 1.0f;
    u32 places[kPlacesEach];  // with the thread's number, and with that of as many threads more
    u64 route = kNoRow;       // of the choice, in an earlier dispatch
    Source<From, To> source;  // of the step
    Pack pack;                // what becomes of it
    float scale = 0;

    // What never changes: before the kernel before has ended.
    __device__ void load_places(const Shuffle& shuffle) {
#pragma unroll
        for (u32 p = 0; p < kPlacesEach; ++p)
            if (threadIdx.x + p * blockDim.x < shuffle.experts * shuffle.replicas) places[p] = shuffle.places[threadIdx.x + p * blockDim.x];
    }

    __device__ void load(const DispatchArgs& args, const Steps& steps) {
        has_step = steps.has(threadIdx.x / 32, args.token_count);
        if (threadIdx.x < u32(args.token_count) * u32(args.shuffle.k)) {
            if (args.reuse) {
                route = args.routes[threadIdx.x];
            } else {
                expert = expert_of_choice(args, threadIdx.x);
                if (args.weights) weight = args.weights[threadIdx.x];
            }
        }
        if (has_step) load_step(args, steps, step, source);
    }

    __device__ void keep_places(const Shuffle& shuffle, Table& table) const {
        if (!are_near(shuffle)) return;
#pragma unroll
        for (u32 p = 0; p < kPlacesEach; ++p)
            if (threadIdx.x + p * blockDim.x < shuffle.experts * shuffle.replicas) table.few.places[threadIdx.x + p * blockDim.x] = places[p];
    }

    // Once the pack of a step is there.
    __device__ void round(const DispatchArgs& args, const Steps& steps, const Step& step) {
        if (steps.holds(step)) source.template transform<Transform>(args.transform, step.token, step.first + threadIdx.x % 32);
        pack = Cast<From, To>::round(source, scale);
    }
};

// Looks up where this rank's choices go. A barrier follows.
template <class Early>
__device__ void place_choices(const DispatchArgs& args, Table& table, Early& early) {
    const u32 choices = u32(args.token_count) * u32(args.shuffle.k);
    const OwnChoices own(table);
    for (u32 i = threadIdx.x; i < choices; i += blockDim.x) {
        const i64 expert = i < blockDim.x ? early.expert : expert_of_choice(args, i);
        own.place[i] = place_of_choice(args, i, expert, are_near(args.shuffle) ? table.few.places : args.shuffle.places);
        own.bucket[i] = bucket_of_place(args.shuffle, own.place[i]);
        own.weight[i] = bits_as<int>(i < blockDim.x ? early.weight : args.weights ? args.weights[i] : 1.0f);
    }
}

// Where they went in an earlier dispatch.
template <class Early>
__device__ void recall_choices(const DispatchArgs& args, Table& table, const Early& early) {
    for (u32 i = threadIdx.x; i < u32(args.token_count) * u32(args.shuffle.k); i += blockDim.x) {
        const u64 route = i < blockDim.x ? early.route : args.routes[i];
        OwnChoices(table).place[i] = route == kNoRow ? kNoPlace : int(route_place(route));
    }
}

// Numbers this block's share of its rank's choices within their buckets, a warp each, and tells all ranks.
__device__ void send_choices(const DispatchArgs& args, const FewTokens& few, Table& table) {
    const u32 choices = u32(args.token_count) * u32(args.shuffle.k), lane = threadIdx.x % 32, warps = blockDim.x / 32;
    const OwnChoices own(table);
    for (u32 n = threadIdx.x / 32; n * gridDim.x + blockIdx.x < choices; n += warps) {
        const u32 i = n * gridDim.x + blockIdx.x;
        const int bucket = own.bucket[i];
        u32 number = 0;
        for (u32 j = lane * 4; j < i; j += 32 * 4) {
            const Four four = own.buckets(j);
#pragma unroll
            for (u32 f = 0; f < 4; ++f) number += u32(j + f < i) & u32(four.each[f] == bucket);
        }
        number = __reduce_add_sync(0xffffffffu, number);
        const u64 word = bucket < 0 ? kNoRow : choice_word(u32(own.place[i]), number, bits_as<float>(own.weight[i]));
        if (int(lane) < args.shuffle.team.size) few.send_word(int(lane), u32(args.shuffle.words_at) + 1 + n, word);
    }
}

// The ranks of a token's places, as bits. All lanes of a warp.
__device__ __forceinline__ u32 ranks_of(const int* places, u32 k) {
    u32 ranks = 0;
    for (u32 c = threadIdx.x % 32; c < k; c += 32)
        if (places[c] != kNoPlace) ranks |= 1u << place_rank(u32(places[c]));
    return __reduce_or_sync(0xffffffffu, ranks);
}

// The scales of a step of 8-bit floats are the pack behind theirs. All lanes of a warp.
__device__ __forceinline__ Pack with_scales(Pack pack, float scale) {
    const u32 bits = bits_as<u32>(scale);
    u64 words[3];
#pragma unroll
    for (int group = 0; group < 3; ++group) words[group] = __shfl_sync(kWholeWarp, bits, group * kGroupLanes);
    return threadIdx.x % 32 == kStepPacks<Float8> ? Pack{words[1] << 32 | words[0], words[2]} : pack;
}
__device__ __forceinline__ float scale_of(Pack pack) {
    const u64 x = __shfl_sync(kWholeWarp, pack.x, int(kStepPacks<Float8>)), y = __shfl_sync(kWholeWarp, pack.y, int(kStepPacks<Float8>));
    const u32 group = threadIdx.x % 32 / kGroupLanes;
    return bits_as<float>(group == 0 ? u32(x) : group == 1 ? u32(x >> 32) : u32(y));
}

// Sends the steps of this block; each warp's first one has been rounded.
template <class From, class To, class Transform>
__device__ void send_steps(
    const DispatchArgs& args, const FewTokens& few, const int* places, Early<From, To, Transform>& early) {
    const u32 warps = blockDim.x / 32, k = u32(args.shuffle.k);
    for (u32 job = threadIdx.x / 32; few.has(job, args.token_count); job += warps) {
        const Step step = job < warps ? early.step : few.step(job);
        if (job >= warps) {
            load_step(args, few, step, early.source);
            early.round(args, few, step);
        }
        Pack pack = early.pack;
        if constexpr (sizeof(To) == sizeof(Float8)) pack = with_scales(pack, early.scale);
        const Pack part = part_of_row(pack, few.epoch);
#pragma unroll 1
        for (u32 left = ranks_of(places + step.token * k, k); left != 0; left &= left - 1)
            few.send_step(__ffs(int(left)) - 1, step, part);
    }
}

// Nothing has been counted yet; a barrier follows.
__device__ void clear_counts(const Shuffle& shuffle, Table& table) {
    if (shuffle.few_tokens == 0) return;  // there may be no room
#pragma unroll 1
    for (u32 i = threadIdx.x; i < u32(shuffle.team.size) * u32(shuffle.buckets); i += blockDim.x) table.few.matrix[i] = 0;
}

// Whose choices a thread receives, and which: number, number + together …
struct Listener {
    u32 together = 1, source = 0, number = ~0u;
    u32 block = 0, position = 0;  // that tells the first, and where in its slot

    Listener() = default;
    __device__ explicit Listener(const Shuffle& shuffle)
        : together(blockDim.x / u32(shuffle.team.size)), source(threadIdx.x % u32(shuffle.team.size)) {
        const u32 i = threadIdx.x / u32(shuffle.team.size), of_block = i / gridDim.x;
        if (i < together) number = i;
        block = i - of_block * gridDim.x;
        position = u32(shuffle.words_at) + 1 + of_block;
    }

    __device__ u64 known() const { return u64(source ^ together) << 32 ^ number ^ u64(block ^ position) << 16; }
};

// Receives how many tokens all ranks have, and the choices of those that have few; counts these.
__device__ bool receive_choices(const Shuffle& shuffle, const FewTokens& few, Table& table, const Listener& listener) {
    const u32 source = listener.source, each = u32(shuffle.few_tokens) * u32(shuffle.k);
    u32 i = listener.number;
    u64 tokens = 0, word = 0;
    bool ok = few.receive_choice(int(source), i, few.told(int(source), listener.block, listener.position), tokens, word);
    if (i == 0) table.tokens[source] = i64(tokens);
#pragma unroll 1
    for (const u32 choices = few.choices_of(tokens); ok && i < choices;) {
        table.few.words[source * each + i] = word;
        if (is_choice(word))
            atomicAdd(&table.few.matrix[source * u32(shuffle.buckets) + u32(bucket_of(shuffle, choice_place(word)))], 1);
        i += listener.together;
        if (i < choices) ok = few.receive_word(int(source), few.choice(int(source), i), word);
    }
    return Channel::everyone(ok);
}

// All ranks have few: finds out where the buckets begin.
__device__ void place_few(const Shuffle& shuffle, Table& table) {
    place_buckets(shuffle, table, [&](int b) {
        int sum = 0;
#pragma unroll 4
        for (int source = 0; source < shuffle.team.size; ++source) sum += table.few.matrix[source * int(shuffle.buckets) + b];
        return sum;
    });
}

// The row that a choice of `source` becomes on its rank; kNoWay: there is no room.
__device__ u32 row_of(const Shuffle& shuffle, const Table& table, int source, u64 word) {
    if (!is_choice(word)) return kNoWay;
    const int bucket = bucket_of(shuffle, choice_place(word));
    int row = table.count[bucket] + int(choice_number(word));
#pragma unroll 4
    for (int before = 0; before < source; ++before) row += table.few.matrix[before * int(shuffle.buckets) + bucket];
    return row < table.limit[bucket] ? u32(row) : kNoWay;
}

// What choice `c` of a token has on this rank.
__device__ u32 few_way(const DispatchArgs& args, const Table& table, int source, u32 token, int c) {
    const Shuffle& shuffle = args.shuffle;
    if (args.reuse) return args.ways[(source * shuffle.max_tokens + token) * shuffle.k + c];
    const u64 word = table.few.words[(u32(source) * u32(shuffle.few_tokens) + token) * u32(shuffle.k) + u32(c)];
    if (!is_choice(word) || place_rank(choice_place(word)) != shuffle.team.rank) return kNoWay;
    return row_of(shuffle, table, source, word);
}

// Puts the steps of this block into their rows.
template <class To>
__device__ void receive_steps(
    const DispatchArgs& args, const FewTokens& few, const Steps::Turn& turn, const Table& table, Rows& list) {
    const Shuffle& shuffle = args.shuffle;
    const int me = shuffle.team.rank;
    const u32 lane = threadIdx.x % 32, groups = u32(groups_of(shuffle));
    Pack* rows = reinterpret_cast<Pack*>(shuffle.rows[me]);
    float* scales = reinterpret_cast<float*>(shuffle.scales[me]);
    few.share(table.tokens, turn, [&](int source, const Step& step) {
        const u32 i = step.first + lane;
        const auto way = [&](int c) { return few_way(args, table, source, step.token, c); };
        FewTokens::Coming<1> coming(few, 1u << source, source, step);  // meanwhile
        const int count = list.list(int(shuffle.k), way, [](int, int, u32) {});
        if (count == 0 || !few.receive(coming, source)) return;
        const Pack pack = coming.packs[0];
        float scale = 0;
        if constexpr (sizeof(To) == sizeof(Float8)) scale = scale_of(pack);
        if (!few.holds(step)) return;
#pragma unroll 1
        for (int r = 0; r < count; ++r) {
            rows[u64(list.row[r]) * few.row_packs + i] = pack;
            if (begins_group<To>(i)) scales[u64(list.row[r]) * groups + i / kGroupLanes] = scale;
        }
    });
}

// A thread's number, so that the last warps, which often have no steps, write what there is little of.
__device__ __forceinline__ u32 number_from_last() { return blockDim.x - 1 - threadIdx.x; }

// The handle's arrays: ways of all tokens here, experts and weights of the rows, routes of this rank's tokens.
__device__ void write_few(const DispatchArgs& args, const Table& table) {
    const Shuffle& shuffle = args.shuffle;
    const u32 each = u32(shuffle.few_tokens) * u32(shuffle.k);
#pragma unroll 1
    for (u32 j = blockIdx.x * blockDim.x + number_from_last(); j < each * u32(shuffle.team.size); j += gridDim.x * blockDim.x) {
        const int source = int(j / each);
        const u32 i = j % each;
        if (i >= u32(table.tokens[source]) * u32(shuffle.k)) continue;
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

// Past the rows there is no expert.
__device__ void write_end(const DispatchArgs& args, i64 total) {
#pragma unroll 1
    for (i64 row = total + blockIdx.x * blockDim.x + number_from_last(); row < args.shuffle.capacity; row += gridDim.x * blockDim.x) {
        args.row_experts[row] = -1;
        args.row_weights[row] = 0.0f;
    }
}

// What is known of the rows is written while they are on their way.
template <class To>
__device__ void receive_few(const DispatchArgs& args, const FewTokens& few, const Steps::Turn& turn, Table& table, DispatchList* lists) {
    const Shuffle& shuffle = args.shuffle;
    if (!args.reuse) {
        place_few(shuffle, table);
        if (is_scribe())
            write_counts(args, table, [&](int source, int b) { return table.few.matrix[source * int(shuffle.buckets) + b]; });
        write_few(args, table);
        write_end(args, total_of(shuffle, table));
    }
    receive_steps<To>(args, few, turn, table, lists[threadIdx.x / 32].rows);
}
