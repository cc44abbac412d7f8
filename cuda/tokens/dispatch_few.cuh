// A dispatch of few tokens: choices leave as packets, tokens at the same time as lines; receivers
// compute where rows belong.
//
//   1. send_steps sends each step of a token's row to the ranks of its choices.
//   2. After the choices have come, place_few computes where buckets and each rank's share of them
//      begin.
//   3. write_few writes the handle's arrays, while the steps are in flight.
//   4. receive_steps stores the steps of this block in all rows of their tokens.
#pragma once
#include "tokens/dispatch_choices.cuh"

struct Leader {  // where a token's data goes on a rank
    Pack* row;
    float* scales;
    int rank;
};

union DispatchList {  // a warp's list, in shared memory: for sending, or for receiving
    Rows rows;
    Leader leaders[kMaxRanks];
};

__device__ __forceinline__ u64 groups_of(const Shuffle& shuffle) {
    return (u64(shuffle.hidden) + kGroup - 1) / kGroup;
}

// The ranks of a token's places, as bits. All lanes of a warp call it.
__device__ __forceinline__ u32 ranks_of(const int* places, u32 k) {
    u32 ranks = 0;
    for (u32 c = threadIdx.x % 32; c < k; c += 32)
        if (places[c] != kNoPlace) ranks |= 1u << place_rank(u32(places[c]));
    return __reduce_or_sync(kWholeWarp, ranks);
}

// Sends the steps of this block; each warp has rounded its first one.
template <class From, class To, class Transform>
__device__ void send_steps(
    const DispatchArgs& args, const FewTokens& few, const int* places,
    Early<From, To, Transform>& early) {
    const u32 warps = blockDim.x / 32, k = u32(args.shuffle.k);
    for (u32 job = threadIdx.x / 32; few.has(job, args.token_count); job += warps) {
        const Step step = job < warps ? early.step : few.step(job);
        if (job >= warps) {
            load_step(find_step<From, To>(args, few, step), is_aligned(args.tokens), early.source);
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

constexpr int kCountsAtOnce = 4;  // ranks whose counts are loaded before the first is replaced; not
                                  // measured by itself

// If all ranks have few: computes where the buckets begin, and replaces each rank's count in a
// bucket by the sum over the ranks before it.
__device__ void place_few(const Shuffle& shuffle, Table& table) {
    place_buckets(shuffle, table, [&](int b) {
        int sum = 0;
#pragma unroll 1
        for (int first = 0; first < shuffle.team.size; first += kCountsAtOnce) {
            const auto counted = [&](int c) -> int& {
                return table.few.matrix[(first + c) * int(shuffle.buckets) + b];
            };
            int counts[kCountsAtOnce];
#pragma unroll
            for (int c = 0; c < kCountsAtOnce; ++c)
                counts[c] = first + c < shuffle.team.size ? counted(c) : 0;
#pragma unroll
            for (int c = 0; c < kCountsAtOnce; ++c) {
                if (first + c < shuffle.team.size) counted(c) = sum;
                sum += counts[c];
            }
        }
        table.sum[b] = sum;
        return sum;
    });
}

// How many choices of `source` a bucket has.
__device__ int few_count(const Shuffle& shuffle, const Table& table, int source, int b) {
    const int* before = &table.few.matrix[source * int(shuffle.buckets) + b];
    return (source + 1 < shuffle.team.size ? before[shuffle.buckets] : table.sum[b]) - *before;
}

// The row that a choice of `source` becomes on its rank; kNoWay: there is no room.
__device__ u32 row_of(const Shuffle& shuffle, const Table& table, int source, u64 word) {
    if (!is_choice(word)) return kNoWay;
    const int bucket = bucket_of(shuffle, table, choice_place(word));
    const int row = table.count[bucket] + table.few.matrix[source * int(shuffle.buckets) + bucket] +
        int(choice_number(word));
    return row < table.limit[bucket] ? u32(row) : kNoWay;
}

// The way of choice `c` of a token on this rank.
__device__ u32 few_way(const DispatchArgs& args, const Table& table, int source, u32 token, int c) {
    const Shuffle& shuffle = args.shuffle;
    if (args.reuse) return args.ways[(source * shuffle.max_tokens + token) * shuffle.k + c];
    const u64 word =
        table.few.words[(u32(source) * u32(shuffle.few_tokens) + token) * u32(shuffle.k) + u32(c)];
    if (!is_choice(word) || place_rank(choice_place(word)) != shuffle.team.rank) return kNoWay;
    return row_of(shuffle, table, source, word);
}

// Puts the steps of this block into their rows.
template <class To>
__device__ void receive_steps(
    const DispatchArgs& args, const FewTokens& few, i64 most, const Steps::Turn& turn,
    const Table& table, Rows& list) {
    const Shuffle& shuffle = args.shuffle;
    const int me = shuffle.team.rank;
    const u32 lane = threadIdx.x % 32, groups = u32(groups_of(shuffle));
    Pack* rows = reinterpret_cast<Pack*>(shuffle.rows[me]);
    float* scales = reinterpret_cast<float*>(shuffle.scales[me]);
    few.share(table.tokens, most, turn, [&](int source, const Step& step) {
        const u32 i = step.first + lane;
        const auto way = [&](int c) { return few_way(args, table, source, step.token, c); };
        // loads while the rows are listed
        FewTokens::Coming<1> coming(few, 1u << source, source, step);
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

// The handle's arrays: ways of all tokens here, experts and weights of the rows, routes of this
// rank's tokens.
__device__ void write_few(const DispatchArgs& args, const Table& table) {
    const Shuffle& shuffle = args.shuffle;
    const u32 each = u32(shuffle.few_tokens) * u32(shuffle.k);
#pragma unroll 1
    for (u32 j = blockIdx.x * blockDim.x + number_from_last(); j < each * u32(shuffle.team.size);
         j += gridDim.x * blockDim.x) {
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
        if (source == shuffle.team.rank)
            args.routes[i] = row == kNoWay ? kNoRow : make_route(row, choice_place(word));
    }
}

// Past the rows there is no expert.
__device__ void write_end(const DispatchArgs& args, i64 total) {
#pragma unroll 1
    for (i64 row = total + blockIdx.x * blockDim.x + number_from_last();
         row < args.shuffle.capacity; row += gridDim.x * blockDim.x) {
        args.row_experts[row] = -1;
        args.row_weights[row] = 0.0f;
    }
}

// Writes the handle while the rows are in flight, then receives these.
template <class To>
__device__ void receive_few(
    const DispatchArgs& args, const FewTokens& few, i64 most, const Steps::Turn& turn, Table& table,
    DispatchList* lists) {
    const Shuffle& shuffle = args.shuffle;
    if (!args.reuse) {
        place_few(shuffle, table);
        if (writes_counts())
            write_counts(args, table, [&](int source, int b) {
                return few_count(shuffle, table, source, b);
            });
        write_few(args, table);
        write_end(args, total_of(shuffle, table));
    }
    receive_steps<To>(args, few, most, turn, table, lists[threadIdx.x / 32].rows);
}
