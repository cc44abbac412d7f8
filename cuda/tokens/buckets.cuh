// Buckets of a dispatch: where its rows belong, computed from how many choices of every rank go to
// each bucket.
//
// With many tokens every rank counts its choices and sends the counts (counting.cuh); with few
// every rank has all choices (dispatch_few.cuh). Then
//   1. place_buckets adds up, for each rank, where its buckets begin and where their room ends;
//   2. one block writes the counts for the caller (write_counts).
// Positions come from counting, not from atomic slots, so that the order of rows is the same in
// every run.
// Thresholds follow from shared memory; kPlacesEach and kCountWriters were not measured by
// themselves.
#pragma once
#include "tokens/few_tokens.cuh"
#include "elements/row_transform.cuh"

constexpr int kMostCounters = 4096;   // counters of all warps of a block
constexpr u32 kMostNearPlaces = kMaxBuckets;
constexpr u32 kPlacesEach = 2;        // places that a thread loads, at most

struct DispatchArgs {
    Shuffle shuffle;
    const char* tokens;    // [token_count] rows
    const void* experts;   // [token_count][k] int or i64; -1: none
    const float* weights;  // [token_count][k]; null: all 1
    u64* routes;           // [token_count][k]; these and the following are outputs, of the handle
    u32* ways;             // [size][max_tokens][k]
    i64* token_counts;     // [size]
    i64* counts;           // rows of each of this rank's buckets,
    i64* offsets;          //   where it begins, and the end
    i64* total;            //   rows of this rank
    i64* dropped;          // [size]: rows of each source without room
    int* row_experts;      // [capacity]: the expert of a row, among the rank's; -1 past the rows,
    float* row_weights;    //   and its weight; 0 past the rows
    i64 token_count;
    i64 expert_nbytes;  // 4 or 8
    i64 reuse;          // routes, ways, token_counts and total are those of an earlier dispatch
    TransformArgs transform;  // for tokens
    i64 phases;
};

struct Counting {  // choices of many tokens, by bucket
    int own[kMaxBuckets];   // this rank's choices
    int base[kMaxBuckets];  // before this block's, of this rank and lower ones
    int counters[kMostCounters];  // [warps][buckets], see WarpChoices
};

struct FewChoices {  // the choices of all ranks
    int matrix[kMostFewCounts];  // [size][buckets]: how many choices of a rank; later of the ranks
                                 // before it
    union {
        u64 words[kMostFewChoices];   // [size][few_tokens * k]
        u32 places[kMostNearPlaces];  // the shuffle's, until this rank has looked up its own
                                      // choices
    };
};

struct alignas(16) Table {   // in shared memory; most by bucket
    int count[kMaxBuckets];  // where the bucket begins
    int sum[kMaxBuckets];    // the bucket's count over all ranks
    union {
        int limit[kMaxBuckets];       // where the room ends
        u32 places[kMostNearPlaces];  // of many tokens: the shuffle's, until choices have been
                                      // counted
    };
    union {
        Counting many;
        FewChoices few;
    };
    int dropped[kMaxRanks];
    int first[kMaxRanks];   // bucket of each rank; here since lanes read those of different ranks
                            // at once
    i64 tokens[kMaxRanks];  // tokens of every rank
};

struct alignas(16) Four { int each[4]; };

// This rank's choices, if it has few tokens. They share memory with the counts by bucket, which are
// used later.
struct OwnChoices {
    int* const bucket;
    int* const place;   // kNoPlace: none
    int* const weight;  // a float's bits

    __device__ explicit OwnChoices(Table& table)
        : bucket(table.count),
          place(table.sum),
          weight(table.limit) {
        static_assert(kMostFewChoices <= kMaxBuckets, "they have room");
    }

    // The buckets of choices i to i + 3, of which the last may not exist; i is a multiple of 4.
    __device__ Four buckets(u32 i) const { return *reinterpret_cast<const Four*>(bucket + i); }
};

// Whether this is the block that writes the counts for the caller: the last one, which has the
// fewest tokens.
__device__ __forceinline__ bool writes_counts() { return blockIdx.x == gridDim.x - 1; }

// This is called before any use of the table; a barrier follows.
__device__ __forceinline__ void keep_first_buckets(const Shuffle& shuffle, Table& table) {
    if (int(threadIdx.x) < shuffle.team.size)
        table.first[threadIdx.x] = int(shuffle.first[threadIdx.x]);
}

__device__ __forceinline__ int bucket_of(const Shuffle& shuffle, const Table& table, u32 place) {
    const int rank = place_rank(place);
    return shuffle.by_source ? rank : table.first[rank] + int(place_local(place));
}

// An expert as the caller gave it, in 4 or 8 bytes; and the expert of choice `i`.
__device__ __forceinline__ i64 expert_from(const char* at, i64 nbytes) {
    return nbytes == 8 ? *reinterpret_cast<const i64*>(at) : *reinterpret_cast<const int*>(at);
}
__device__ __forceinline__ i64 expert_of_choice(const DispatchArgs& args, u32 i) {
    return expert_from(
        static_cast<const char*>(args.experts) + i * args.expert_nbytes, args.expert_nbytes);
}

// The place of choice `i`'s expert, or kNoPlace. `places`: the shuffle's. Choices are counted in 32
// bits: a division of 64 bits takes 100 ns.
__device__ int place_of_choice(const DispatchArgs& args, u32 i, i64 expert, const u32* places) {
    const Shuffle& shuffle = args.shuffle;
    if (expert == -1) return kNoPlace;
    const u32 replicas = u32(shuffle.replicas), token = i / u32(shuffle.k);
    if (expert < 0 || expert >= shuffle.experts) {
        record_overflow(shuffle.team, kBadExpert, int(token), expert, shuffle.experts);
        return kNoPlace;
    }
    return int(expert_replica(places, replicas, u32(expert), u32(shuffle.team.rank) + token));
}

// A copy of the shuffle's places in shared memory, if the block's threads can load them all: a
// look-up there is shorter.
struct NearPlaces {
    u32 each[kPlacesEach];  // those with the thread's number, and with the number plus blockDim.x

    __device__ static u32 all(const Shuffle& shuffle) {
        return u32(shuffle.experts) * words_of_expert(u32(shuffle.replicas));
    }
    __device__ static bool are_near(const Shuffle& shuffle) {
        return all(shuffle) <= smaller(kPlacesEach * blockDim.x, kMostNearPlaces);
    }

    // Loads them. They never change, so this may come before the previous kernel has ended.
    __device__ void load(const Shuffle& shuffle) {
#pragma unroll
        for (u32 p = 0; p < kPlacesEach; ++p)
            if (threadIdx.x + p * blockDim.x < all(shuffle))
                each[p] = shuffle.places[threadIdx.x + p * blockDim.x];
    }

    __device__ void keep(const Shuffle& shuffle, u32* places) const {
        if (!are_near(shuffle)) return;
#pragma unroll
        for (u32 p = 0; p < kPlacesEach; ++p)
            if (threadIdx.x + p * blockDim.x < all(shuffle))
                places[threadIdx.x + p * blockDim.x] = each[p];
    }
};

// The bucket of a place; -1: none.
__device__ __forceinline__ int bucket_of_place(
    const Shuffle& shuffle, const Table& table, int place) {
    return place == kNoPlace ? -1 : bucket_of(shuffle, table, u32(place));
}

// How many rows a bucket of `rank` may have. If rows are dropped, the rank's experts share its
// capacity equally.
__device__ __forceinline__ int room_of(const Shuffle& shuffle, int rank) {
    const u32 capacity = u32(shuffle.capacity),
              sharers = u32(shuffle.first[rank + 1] - shuffle.first[rank]);
    return int(shuffle.drops && !shuffle.by_source && sharers > 0 ? capacity / sharers : capacity);
}

// All threads compute where every bucket begins on its rank, and where its room ends; sum_of(b)
// returns how many choices bucket b has. A warp for each rank adds up its buckets, each lane some
// consecutive ones.
template <class Sum>
__device__ void place_buckets(const Shuffle& shuffle, Table& table, Sum sum_of) {
    const int lane = int(threadIdx.x % 32);
#pragma unroll 1
    for (int b = int(threadIdx.x); b < int(shuffle.buckets); b += int(blockDim.x))
        table.count[b] = sum_of(b);
    __syncthreads();
#pragma unroll 1
    for (int rank = int(threadIdx.x / 32); rank < shuffle.team.size; rank += int(blockDim.x / 32)) {
        const int first = int(shuffle.first[rank]), all = int(shuffle.first[rank + 1]) - first,
                  room = room_of(shuffle, rank);
        const int each = (all + 31) / 32, begin = first + min(lane * each, all),
                  end = first + min((lane + 1) * each, all);
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

// The number of this rank's rows.
__device__ __forceinline__ i64 total_of(const Shuffle& shuffle, const Table& table) {
    const int rank = shuffle.team.rank;
    return shuffle.first[rank + 1] > shuffle.first[rank] ? table.limit[shuffle.first[rank + 1] - 1]
                                                         : 0;
}

constexpr u32 kCountWriters = 128;    // threads of a block, the last ones, which often have no
                                      // steps
constexpr u32 kCountGroup = 1;  // their barrier

// The block of writes_counts: writes how many rows each bucket has, where it begins, and what had
// no room. count_of(source, bucket) returns a number of choices.
template <class Count>
__device__ void write_counts(const DispatchArgs& args, Table& table, Count count_of) {
    const Shuffle& shuffle = args.shuffle;
    const Team& team = shuffle.team;
    const int first = int(shuffle.first[team.rank]), end = int(shuffle.first[team.rank + 1]);
    const u32 writers = u32(smaller(blockDim.x, kCountWriters));
    const int me = int(threadIdx.x) - int(blockDim.x - writers);
    if (me < 0) return;
    if (me < team.size) table.dropped[me] = 0;
    any_of_group(false, kCountGroup, writers);
    const i64 total = total_of(shuffle, table);
#pragma unroll 1
    for (int b = first + me; b < end; b += int(writers)) {
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
    any_of_group(false, kCountGroup, writers);
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
