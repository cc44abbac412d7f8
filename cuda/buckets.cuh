// How a dispatch finds out where its rows belong: it counts and numbers the choices of each bucket.
//
// Of many tokens every block counts its own; the counts of all blocks make those of the rank, and are told to every
// peer as packets. Numbers come from counting, not from atomics, so that the order is the same in every run.
#pragma once
#include "few_tokens.cuh"
#include "row_transform.cuh"

constexpr int kSegment = 256;  // choices that are numbered together

struct DispatchArgs {
    Shuffle shuffle;
    const char* tokens;    // [token_count] rows
    const void* experts;   // [token_count][k] int or i64; -1: none
    const float* weights;  // [token_count][k]; null: all 1
    u64* routes;           // [token_count][k]; these and the following are outputs, of the handle
    u32* ways;             // [size][max_tokens][k]
    i64* token_counts;     // [size]
    i64* counts;           // of each of this rank's buckets,
    i64* offsets;          //   where it begins, and the end
    i64* total;            //   rows of this rank
    i64* dropped;          // [size]: rows of each source without room
    int* row_experts;      // [capacity]: the expert of a row, among the rank's; -1 past the rows,
    float* row_weights;    //   and its weight; 0 past the rows
    i64 token_count;
    i64 expert_nbytes;  // 4 or 8
    i64 reuse;          // routes, ways, token_counts and total are those of an earlier dispatch
    TransformArgs transform;  // of tokens
    i64 phases;
};

struct Counting {  // of many tokens
    int own[kMaxBuckets];   // of this rank
    int base[kMaxBuckets];  // where this block's begin
    int segment[kSegment], after[kSegment];
};

struct FewChoices {  // of all ranks
    int matrix[kMostFewCounts];  // [size][buckets]: how many choices of a rank; buckets of this rank's choices before
    u64 words[kMostFewChoices];  // [size][few_tokens * k]
};

struct Table {  // in shared memory; most by bucket
    int count[kMaxBuckets];  // choices of this block; then where the bucket begins
    int sum[kMaxBuckets];    // of all ranks
    int limit[kMaxBuckets];  // where the room ends
    union {
        Counting many;
        FewChoices few;
    };
    int dropped[kMaxRanks];
    i64 tokens[kMaxRanks];  // of every rank
};

// What this rank chooses, if that is little: lies where counts by bucket are, once the tokens have left.
struct OwnChoices {
    int* const bucket;
    int* const place;  // kNoPlace: none

    __device__ explicit OwnChoices(Table& table) : bucket(table.count), place(table.sum) {
        static_assert(kMostFewChoices <= kMaxBuckets, "they have room");
    }
};

// The block that writes what all blocks know: the last one, which has the fewest tokens.
__device__ __forceinline__ bool is_scribe() { return blockIdx.x == gridDim.x - 1; }

__device__ __forceinline__ int bucket_of(const Shuffle& shuffle, u32 place) {
    const int rank = place_rank(place);
    return shuffle.by_source ? rank : int(shuffle.first[rank]) + int(place_local(place));
}

// The expert of choice `i` of all, as given.
__device__ __forceinline__ i64 expert_of_choice(const DispatchArgs& args, u32 i) {
    return args.expert_nbytes == 8 ? static_cast<const i64*>(args.experts)[i] : static_cast<const int*>(args.experts)[i];
}

// The place of choice `i`'s expert, or kNoPlace. Long divisions take 100 ns; there are less than 2^31.
__device__ int place_of_choice(const DispatchArgs& args, u32 i, i64 expert) {
    const Shuffle& shuffle = args.shuffle;
    if (expert == -1) return kNoPlace;
    const u32 token = i / u32(shuffle.k), replicas = u32(shuffle.replicas);
    if (expert < 0 || expert >= shuffle.experts) {
        record_overflow(shuffle.team, kBadExpert, int(token), expert, shuffle.experts);
        return kNoPlace;
    }
    return int(shuffle.places[u32(expert) * replicas + (u32(shuffle.team.rank) + token) % replicas]);
}

// The bucket of a place; -1: none.
__device__ __forceinline__ int bucket_of_place(const Shuffle& shuffle, int place) {
    return place == kNoPlace ? -1 : bucket_of(shuffle, u32(place));
}

// Numbers the choices of this block's tokens within their buckets: what `routes` holds until finish_routes.
__device__ void index_tokens(const DispatchArgs& args, Table& table, const Range& range) {
    const i64 k = args.shuffle.k;
    for (int b = int(threadIdx.x); b < args.shuffle.buckets; b += int(blockDim.x)) table.count[b] = 0;
    for (i64 begin = range.begin * k; begin < range.end * k; begin += kSegment) {
        const int choices = int(smaller(u64(range.end * k - begin), kSegment));
        for (int i = int(threadIdx.x); i < choices; i += int(blockDim.x)) {
            const int place = place_of_choice(args, u32(begin + i), expert_of_choice(args, u32(begin + i)));
            table.many.segment[i] = bucket_of_place(args.shuffle, place);
            args.routes[begin + i] = place == kNoPlace ? kNoRow : make_route(0, u32(place));
        }
        __syncthreads();
        for (int i = int(threadIdx.x); i < choices; i += int(blockDim.x)) {
            const int bucket = table.many.segment[i];
            int before = 0, others = 0;
            for (int j = 0; j < choices; ++j) {
                const bool same = table.many.segment[j] == bucket;
                before += same && j < i;
                others += same && j > i;
            }
            if (bucket >= 0) args.routes[begin + i] += u32(table.count[bucket] + before);
            table.many.after[i] = bucket >= 0 && others == 0 ? table.count[bucket] + before + 1 : 0;
        }
        __syncthreads();
        for (int i = int(threadIdx.x); i < choices; i += int(blockDim.x))
            if (table.many.after[i] != 0) table.count[table.many.segment[i]] = table.many.after[i];
        __syncthreads();
    }
    __syncthreads();
    int* histogram = args.shuffle.histograms + blockIdx.x * args.shuffle.buckets;
    for (int b = int(threadIdx.x); b < args.shuffle.buckets; b += int(blockDim.x)) histogram[b] = table.count[b];
    __syncthreads();
}

// Of so few choices that each block counts all of the rank, instead of waiting for the other blocks.
__device__ void count_alone(const DispatchArgs& args, Table& table, const Range& range) {
    const Shuffle& shuffle = args.shuffle;
    for (int b = int(threadIdx.x); b < shuffle.buckets; b += int(blockDim.x))
        table.many.own[b] = table.many.base[b] = table.sum[b] = 0;
    __syncthreads();
    for (u32 i = threadIdx.x; i < u32(args.token_count * shuffle.k); i += blockDim.x) {
        const int bucket = bucket_of_place(shuffle, place_of_choice(args, i, expert_of_choice(args, i)));
        if (bucket < 0) continue;
        atomicAdd(&table.many.own[bucket], 1);
        if (i < u32(range.begin * shuffle.k)) atomicAdd(&table.many.base[bucket], 1);
    }
    __syncthreads();
}

// All blocks have counted: what the rank has, and what of it comes before this block's.
__device__ void add_blocks(const Shuffle& shuffle, Table& table) {
    for (int b = int(threadIdx.x); b < shuffle.buckets; b += int(blockDim.x)) {
        int before = 0, sum = 0;
#pragma unroll 16  // loads that are on their way together
        for (u32 block = 0; block < gridDim.x; ++block) {
            const int count = shuffle.histograms[block * shuffle.buckets + b];
            before += block < blockIdx.x ? count : 0;
            sum += count;
        }
        table.many.own[b] = sum;
        table.sum[b] = 0;
        table.many.base[b] = before;
    }
    __syncthreads();
}

// Four counts of this rank, as a pack.
__device__ Pack counts_of(const Table& table, i64 buckets, int i) {
    u32 words[4];
    for (int w = 0; w < 4; ++w) words[w] = 4 * i + w < buckets ? u32(table.many.own[4 * i + w]) : 0;
    return Pack{u64(words[1]) << 32 | words[0], u64(words[3]) << 32 | words[2]};
}

__device__ __forceinline__ int count_in(Pack pack, int w) {
    return int(u32((w < 2 ? pack.x : pack.y) >> w % 2 * 32));
}

// Adds four counts of a rank to the table.
__device__ void add_counts(const Shuffle& shuffle, Table& table, int source, int i, Pack pack) {
    for (int w = 0; w < 4 && 4 * i + w < shuffle.buckets; ++w) {
        const int bucket = 4 * i + w, count = count_in(pack, w);
        atomicAdd(&table.sum[bucket], count);  // of integers: in whatever order
        if (source < shuffle.team.rank) atomicAdd(&table.many.base[bucket], count);
        if (is_scribe()) shuffle.matrix[source * shuffle.buckets + bucket] = count;
    }
}

// Every rank tells every peer its counts; all ranks' together come to sum, base, and the matrix.
__device__ bool exchange_counts(const Shuffle& shuffle, Table& table, Packets& packets) {
    const Team& team = shuffle.team;
    const int all = int(shuffle.buckets + 3) / 4, peers = team.size - 1;
    if (!packets.await_free()) return false;
    for (int j = int(threadIdx.x); j < all * peers; j += int(blockDim.x)) {
        Pack* outbox = packets.outbox(packets.channel.peer(j / all));
        packets.send(outbox, u32(j % all) * 2, counts_of(table, shuffle.buckets, j % all));
    }
    bool ok = true;
    for (int j = int(threadIdx.x); ok && j < all * team.size; j += int(blockDim.x)) {
        const int source = j / all, i = j % all;
        Pack counts = counts_of(table, shuffle.buckets, i);
        if (source != team.rank) ok = packets.receive(source, u32(i) * 2, counts);
        if (ok) add_counts(shuffle, table, source, i, counts);
    }
    return Channel::everyone(ok);
}

// Rows that a bucket of `rank` may have. Where rows are dropped, the rank's experts share its capacity alike.
__device__ __forceinline__ int room_of(const Shuffle& shuffle, int rank) {
    const bool shared = shuffle.drops && !shuffle.by_source;
    const u32 capacity = u32(shuffle.capacity);
    return int(shared ? capacity / u32(shuffle.first[rank + 1] - shuffle.first[rank]) : capacity);
}

// Where every bucket begins on its rank, and where the room ends; `sum_of(b)` is how many choices bucket b has. A warp for
// each rank adds up its buckets.
template <class Sum>
__device__ void place_buckets(const Shuffle& shuffle, Table& table, Sum sum_of) {
    const int lane = int(threadIdx.x % 32);
    for (int rank = int(threadIdx.x / 32); rank < shuffle.team.size; rank += int(blockDim.x / 32)) {
        const int first = int(shuffle.first[rank]), end = int(shuffle.first[rank + 1]), room = room_of(shuffle, rank);
        int used = 0;
        for (int b = first + lane; b - lane < end; b += 32) {
            const int rows = b < end ? min(sum_of(b), room) : 0;
            int up_to = rows;
            for (int delta = 1; delta < 32; delta *= 2) {
                const int before = __shfl_up_sync(0xffffffffu, up_to, delta);
                if (lane >= delta) up_to += before;
            }
            if (b < end) {
                table.count[b] = used + up_to - rows;
                table.limit[b] = min(used + up_to, int(shuffle.capacity));
            }
            used += __shfl_sync(0xffffffffu, up_to, 31);
        }
    }
    __syncthreads();
}

// Rows that this rank has.
__device__ __forceinline__ i64 total_of(const Shuffle& shuffle, const Table& table) {
    const int rank = shuffle.team.rank;
    return shuffle.first[rank + 1] > shuffle.first[rank] ? table.limit[shuffle.first[rank + 1] - 1] : 0;
}

// From a number in a block's bucket to the row on a rank.
__device__ void finish_routes(const DispatchArgs& args, const Table& table, const Range& range) {
    for (i64 i = range.begin * args.shuffle.k + threadIdx.x; i < range.end * args.shuffle.k; i += blockDim.x) {
        const u64 route = args.routes[i];
        if (route == kNoRow) continue;
        const int bucket = bucket_of(args.shuffle, route_place(route));
        const int row = table.count[bucket] + table.many.base[bucket] + int(route_row(route));
        args.routes[i] = row < table.limit[bucket] ? make_route(u32(row), route_place(route)) : kNoRow;
    }
    __syncthreads();
}

// The scribe: how many rows each bucket has, where it begins, and what had no room. `count_of(source, bucket)`: choices.
template <class Count>
__device__ void write_counts(const DispatchArgs& args, Table& table, Count count_of) {
    const Shuffle& shuffle = args.shuffle;
    const Team& team = shuffle.team;
    const int first = int(shuffle.first[team.rank]), end = int(shuffle.first[team.rank + 1]);
    if (int(threadIdx.x) < team.size) table.dropped[threadIdx.x] = 0;
    __syncthreads();
    const i64 total = total_of(shuffle, table);
    for (int b = first + int(threadIdx.x); b < end; b += int(blockDim.x)) {
        int before = table.count[b];
        if (!shuffle.by_source) {
            args.offsets[b - first] = smaller(before, total);
            args.counts[b - first] = table.limit[b] > before ? table.limit[b] - before : 0;
        }
        for (int source = 0; source < team.size; ++source) {
            const int count = count_of(source, b);
            const int kept = max(0, min(count, table.limit[b] - before));
            if (kept < count) atomicAdd(&table.dropped[source], count - kept);
            if (shuffle.by_source) {
                args.offsets[source] = smaller(before, total);
                args.counts[source] = kept;
            }
            before += count;
        }
    }
    __syncthreads();
    if (int(threadIdx.x) < team.size) {
        args.dropped[threadIdx.x] = table.dropped[threadIdx.x];
        args.token_counts[threadIdx.x] = table.tokens[threadIdx.x];
    }
    if (threadIdx.x != 0) return;
    args.offsets[shuffle.by_source ? team.size : end - first] = total;
    args.total[0] = total;
    for (int source = 0; source < team.size && !shuffle.drops; ++source) {
        if (table.dropped[source] == 0) continue;
        i64 wanted = 0;
        for (int b = first; b < end; ++b) wanted += count_of(source, b);
        return record_overflow(team, kCut, source, wanted, wanted - table.dropped[source]);
    }
}
