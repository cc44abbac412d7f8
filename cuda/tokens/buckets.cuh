// How a dispatch finds out where its rows belong: from how many choices each bucket has, of every rank.
//
// Of many tokens every rank counts, and tells its peers (counting.cuh); of few all choices are known to all (dispatch_few.cuh).
// Numbers come from counting, not from atomics, so that the order is the same in every run.
#pragma once
#include "tokens/few_tokens.cuh"
#include "elements/row_transform.cuh"

constexpr int kMostCounters = 4096;   // of the warps of a block
constexpr u32 kMostNearPlaces = kMaxBuckets;
constexpr u32 kPlacesEach = 2;        // of them, a thread

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
    int counters[kMostCounters];  // [warps][buckets], see WarpChoices
};

struct FewChoices {  // of all ranks
    int matrix[kMostFewCounts];  // [size][buckets]: how many choices of a rank; then of the ranks before
    union {
        u64 words[kMostFewChoices];   // [size][few_tokens * k]
        u32 places[kMostNearPlaces];  // the shuffle's, until this rank has looked up its own choices'
    };
};

struct alignas(16) Table {   // in shared memory; most by bucket
    int count[kMaxBuckets];  // where the bucket begins
    int sum[kMaxBuckets];    // of all ranks
    union {
        int limit[kMaxBuckets];       // where the room ends
        u32 places[kMostNearPlaces];  // of many tokens: the shuffle's, until choices have been counted
    };
    union {
        Counting many;
        FewChoices few;
    };
    int dropped[kMaxRanks];
    int first[kMaxRanks];   // bucket of each rank: lanes look at those of many at once
    i64 tokens[kMaxRanks];  // of every rank
};

struct alignas(16) Four { int each[4]; };

// What this rank chooses, if that is little: lies where counts by bucket are, once the tokens have left.
struct OwnChoices {
    int* const bucket;
    int* const place;   // kNoPlace: none
    int* const weight;  // a float's bits

    __device__ explicit OwnChoices(Table& table) : bucket(table.count), place(table.sum), weight(table.limit) {
        static_assert(kMostFewChoices <= kMaxBuckets, "they have room");
    }

    // Of choices i to i + 3, whether there are as many or not; i is a multiple of 4.
    __device__ Four buckets(u32 i) const { return *reinterpret_cast<const Four*>(bucket + i); }
};

// The block that writes what all blocks know: the last one, which has the fewest tokens.
__device__ __forceinline__ bool is_scribe() { return blockIdx.x == gridDim.x - 1; }

// Before a barrier, and anything else of the table.
__device__ __forceinline__ void keep_first_buckets(const Shuffle& shuffle, Table& table) {
    if (int(threadIdx.x) < shuffle.team.size) table.first[threadIdx.x] = int(shuffle.first[threadIdx.x]);
}

__device__ __forceinline__ int bucket_of(const Shuffle& shuffle, const Table& table, u32 place) {
    const int rank = place_rank(place);
    return shuffle.by_source ? rank : table.first[rank] + int(place_local(place));
}

// An expert as given, in 4 or 8 bytes; that of choice `i` of all.
__device__ __forceinline__ i64 expert_from(const char* at, i64 nbytes) {
    return nbytes == 8 ? *reinterpret_cast<const i64*>(at) : *reinterpret_cast<const int*>(at);
}
__device__ __forceinline__ i64 expert_of_choice(const DispatchArgs& args, u32 i) {
    return expert_from(static_cast<const char*>(args.experts) + i * args.expert_nbytes, args.expert_nbytes);
}

// The place of choice `i`'s expert, or kNoPlace. Long divisions take 100 ns; there are less than 2^31. `places`: the shuffle's.
__device__ int place_of_choice(const DispatchArgs& args, u32 i, i64 expert, const u32* places) {
    const Shuffle& shuffle = args.shuffle;
    if (expert == -1) return kNoPlace;
    const u32 replicas = u32(shuffle.replicas), token = i / u32(shuffle.k);
    if (expert < 0 || expert >= shuffle.experts) {
        record_overflow(shuffle.team, kBadExpert, int(token), expert, shuffle.experts);
        return kNoPlace;
    }
    if (replicas == 1) return int(places[u32(expert)]);
    return int(places[u32(expert) * replicas + (u32(shuffle.team.rank) + token) % replicas]);
}

// The shuffle's places are kept in shared memory, if threads can fetch them all: a look there is shorter than one at memory.
struct NearPlaces {
    u32 each[kPlacesEach];  // with the thread's number, and with that of as many threads more

    __device__ static u32 all(const Shuffle& shuffle) { return u32(shuffle.experts * shuffle.replicas); }
    __device__ static bool are_near(const Shuffle& shuffle) {
        return all(shuffle) <= smaller(kPlacesEach * blockDim.x, kMostNearPlaces);
    }

    // They never change: before the kernel before has ended.
    __device__ void load(const Shuffle& shuffle) {
#pragma unroll
        for (u32 p = 0; p < kPlacesEach; ++p)
            if (threadIdx.x + p * blockDim.x < all(shuffle)) each[p] = shuffle.places[threadIdx.x + p * blockDim.x];
    }

    __device__ void keep(const Shuffle& shuffle, u32* places) const {
        if (!are_near(shuffle)) return;
#pragma unroll
        for (u32 p = 0; p < kPlacesEach; ++p)
            if (threadIdx.x + p * blockDim.x < all(shuffle)) places[threadIdx.x + p * blockDim.x] = each[p];
    }
};

// The bucket of a place; -1: none.
__device__ __forceinline__ int bucket_of_place(const Shuffle& shuffle, const Table& table, int place) {
    return place == kNoPlace ? -1 : bucket_of(shuffle, table, u32(place));
}

// Rows that a bucket of `rank` may have. Where rows are dropped, the rank's experts, if it has any, share its capacity alike.
__device__ __forceinline__ int room_of(const Shuffle& shuffle, int rank) {
    const u32 capacity = u32(shuffle.capacity), sharers = u32(shuffle.first[rank + 1] - shuffle.first[rank]);
    return int(shuffle.drops && !shuffle.by_source && sharers > 0 ? capacity / sharers : capacity);
}

// Where every bucket begins on its rank, and where the room ends; `sum_of(b)` is how many choices bucket b has. A warp for
// each rank adds up its buckets, each lane some that follow each other.
template <class Sum>
__device__ void place_buckets(const Shuffle& shuffle, Table& table, Sum sum_of) {
    const int lane = int(threadIdx.x % 32);
#pragma unroll 1
    for (int b = int(threadIdx.x); b < int(shuffle.buckets); b += int(blockDim.x)) table.count[b] = sum_of(b);
    __syncthreads();
#pragma unroll 1
    for (int rank = int(threadIdx.x / 32); rank < shuffle.team.size; rank += int(blockDim.x / 32)) {
        const int first = int(shuffle.first[rank]), all = int(shuffle.first[rank + 1]) - first, room = room_of(shuffle, rank);
        const int each = (all + 31) / 32, begin = first + min(lane * each, all), end = first + min((lane + 1) * each, all);
        int rows = 0;
#pragma unroll 4
        for (int b = begin; b < end; ++b) rows += min(table.count[b], room);
        int used = sum_to_lane(rows) - rows;
#pragma unroll 4
        for (int b = begin; b < end; ++b) {
            const int before = used;
            used += min(table.count[b], room);
            table.count[b] = before;
            table.limit[b] = min(used, int(shuffle.capacity));
        }
    }
    __syncthreads();
}

// Rows that this rank has.
__device__ __forceinline__ i64 total_of(const Shuffle& shuffle, const Table& table) {
    const int rank = shuffle.team.rank;
    return shuffle.first[rank + 1] > shuffle.first[rank] ? table.limit[shuffle.first[rank + 1] - 1] : 0;
}

constexpr u32 kScribes = 128;    // threads of a block, the last ones, which often have no steps
constexpr u32 kScribeGroup = 1;  // their barrier

// The scribe: how many rows each bucket has, where it begins, and what had no room. `count_of(source, bucket)`: choices.
template <class Count>
__device__ void write_counts(const DispatchArgs& args, Table& table, Count count_of) {
    const Shuffle& shuffle = args.shuffle;
    const Team& team = shuffle.team;
    const int first = int(shuffle.first[team.rank]), end = int(shuffle.first[team.rank + 1]);
    const u32 scribes = u32(smaller(blockDim.x, kScribes));
    const int me = int(threadIdx.x) - int(blockDim.x - scribes);
    if (me < 0) return;
    if (me < team.size) table.dropped[me] = 0;
    any_of_group(false, kScribeGroup, scribes);
    const i64 total = total_of(shuffle, table);
#pragma unroll 1
    for (int b = first + me; b < end; b += int(scribes)) {
        int before = table.count[b];
        const int limit = table.limit[b];
        if (!shuffle.by_source) {
            args.offsets[b - first] = min(before, int(total));
            args.counts[b - first] = max(limit - before, 0);
        }
#pragma unroll 1
        for (int source = 0; source < team.size; ++source) {
            const int count = count_of(source, b), kept = max(0, min(count, limit - before));
            if (kept < count) atomicAdd(&table.dropped[source], count - kept);
            if (shuffle.by_source) {
                args.offsets[source] = min(before, int(total));
                args.counts[source] = kept;
            }
            before += count;
        }
    }
    any_of_group(false, kScribeGroup, scribes);
    if (me < team.size) {
        args.dropped[me] = table.dropped[me];
        args.token_counts[me] = table.tokens[me];
    }
    if (me != 0) return;
    args.offsets[shuffle.by_source ? team.size : end - first] = total;
    args.total[0] = total;
    for (int source = 0; source < team.size && !shuffle.drops; ++source) {
        if (table.dropped[source] == 0) continue;
        i64 wanted = 0;
        for (int b = first; b < end; ++b) wanted += count_of(source, b);
        return record_overflow(team, kCut, source, wanted, wanted - table.dropped[source]);
    }
}
