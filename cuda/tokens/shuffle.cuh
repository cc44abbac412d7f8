// Token dispatch and combine: the memory that they share, and the words that describe where a
// choice goes.
//
// A token's *choice* is one of its k experts. Every choice becomes a row on a rank that has the
// expert. The data travels once to each rank, to the first of the token's rows there (the
// *leader*), and is copied on there. The *ways* of a token on a rank are its rows there: one word
// for each choice. Ranks communicate through a workspace of the shuffle's own, laid out like a
// lease.
//
//   *route*   at the token's rank: the rank and row that a choice becomes, and its expert's place
//   *way*     at the row's rank: the row of a choice, or kNoWay
//   *note*    at the row's rank: the expert and weight of a choice
//   *bucket*  the rows of one expert on a rank, or of one source (by_source)
//
// Twin: ShuffleStruct of pyncclx/tokens/parameters.py; pyncclx/tokens/memory.py computes the
// offsets.
#pragma once
#include "protocol/channel.cuh"
#include "protocol/lanes.cuh"
#include "elements/numbers.cuh"
#include "protocol/vector.cuh"

constexpr int kMaxBuckets = 1024;  // buckets of all ranks together
constexpr int kMaxChoices = 128;   // choices of a token
constexpr int kMaxWarps = kMaxThreads / 32;
constexpr u64 kNoRow = ~u64(0);    // a route that leads nowhere: no expert was chosen, or there was
                                   // no room
constexpr u32 kNoWay = ~u32(0);    // a choice that has no row here

enum Phase : i64 { kSend = 1, kReceive = 2 };
__device__ __forceinline__ bool is_whole(i64 phases) { return phases == (kSend | kReceive); }

// Whether the kernel takes few multiprocessors: two blocks of half of the threads share one. It is computed from the
// grid: with an argument instead, the compiler issued one load less in the loop of combine that adds rows (1024
// tokens took 93 µs instead of 79; 2 H200, docs/design_notes.md, "For many tokens, too, blocks
// prefetch").
__device__ __forceinline__ bool takes_few() { return gridDim.x * blockDim.x <= kMostEarlyThreads; }

// A thread's number from the last: the first warps move steps of few tokens, so the last ones do
// the rest.
__device__ __forceinline__ u32 number_from_last() { return blockDim.x - 1 - threadIdx.x; }

// The constants of a shuffle. Rows of a rank are grouped in buckets: one for each of its experts,
// or one for each source (by_source).
struct Shuffle {
    Team team;  // the shuffle's Team: base[] are the workspaces
    char* rows[kMaxRanks];     // every rank's memory, as mapped in this process: [capacity] rows,
    char* scales[kMaxRanks];   //   [capacity][groups] float, for Float8,
    char* ways[kMaxRanks];     //   [size][max_tokens][k] u32, ways that the sources sent,
    char* notes[kMaxRanks];    //   [size][max_tokens][k] u64, and notes,
    char* results[kMaxRanks];  //   [max_tokens][results_of_token] rows, where results come back,
    char* values[kMaxRanks];   //   [max_tokens][k] float, where single numbers come back
    const u32* places;         // of all experts, as expert_replica reads them
    int* histograms;           // [blocks][buckets]: how many choices of a block go to a bucket
    int* matrix;               // [size][buckets]: how many choices of a rank
    Pack* own_slots;           // [blocks][2][slot_packets]: the packets that this rank sends to
                               // itself, see few_tokens.cuh,
    Pack* own_rows;            // [blocks][2][slot_rows][kRowPlaces]: and its rows of lines
    i64 experts, replicas, k;
    i64 hidden;            // elements of a row, a multiple of 16
    i64 capacity;          // rows of a rank
    i64 max_tokens;        // most tokens of a rank
    i64 few_tokens;        // up to so many tokens of each rank travel as lines
    i64 alone_choices;     // up to so many choices of the rank, every block counts all of them
    i64 words_at;          // position in a slot of packets: a block's words about few tokens
    i64 results_of_token;  // ranks that a token's results can come from, at most
    i64 buckets;           // buckets of all ranks
    i64 by_source;
    i64 drops;                     // rows that do not fit are dropped; 0: they are an error
    i64 first[kMaxRanks + 1];      // the first bucket of every rank

    __device__ u32* ways_of(int holder, int source, i64 token) const {
        return reinterpret_cast<u32*>(ways[holder]) + (source * max_tokens + token) * k;
    }

    __device__ u64* notes_of(int holder, int source, i64 token) const {
        return reinterpret_cast<u64*>(notes[holder]) + (source * max_tokens + token) * k;
    }
};

// Where an expert is: a rank, and which of the rank's experts it is.
__device__ __forceinline__ u32 expert_place(int rank, u32 local) { return u32(rank) << 16 | local; }
__device__ __forceinline__ int place_rank(u32 place) { return int(place >> 16); }
__device__ __forceinline__ u32 place_local(u32 place) { return place & 0xffff; }

// The words of an expert in the table of places: its place; if experts have replicas, the number of
// its ranks, and the places on them, of which the last ones are not used if other experts have more.
__device__ __forceinline__ u32 words_of_expert(u32 replicas) {
    return replicas == 1 ? 1 : 1 + replicas;
}
// Returns the place of the replica that takes a token; an expert's ranks take tokens in turn.
__device__ __forceinline__ u32 expert_replica(
    const u32* places, u32 replicas, u32 expert, u32 turn) {
    const u32* own = places + expert * words_of_expert(replicas);
    return replicas == 1 ? own[0] : own[1 + turn % own[0]];
}

// Where a choice goes: the row it becomes, and the place of the expert.
__device__ __forceinline__ u64 make_route(u32 row, u32 place) { return u64(place) << 32 | row; }
__device__ __forceinline__ u32 route_row(u64 route) { return u32(route); }
__device__ __forceinline__ u32 route_place(u64 route) { return u32(route >> 32); }
__device__ __forceinline__ int route_rank(u64 route) { return place_rank(route_place(route)); }

// The note of a choice: the expert's number among the rank's, and the weight.
__device__ __forceinline__ u64 make_note(u32 local, float weight) {
    return u64(local) << 32 | bits_as<u32>(weight);
}
__device__ __forceinline__ u32 note_local(u64 note) { return u32(note >> 32); }
__device__ __forceinline__ float note_weight(u64 note) { return bits_as<float>(u32(note)); }

// The choice whose row on `rank` is the token's leader there; -1: the token has no row there.
__device__ __forceinline__ int leading_choice(const u64* routes, int k, int rank) {
    int leading = -1;
#pragma unroll 4
    for (int c = k - 1; c >= 0; --c) {
        const u64 route = routes[c];
        if (route != kNoRow && route_rank(route) == rank) leading = c;
    }
    return leading;
}

// Where the result of a token from `rank` comes back: a token has as many places as ranks that it
// can have rows on.
__device__ __forceinline__ u64
result_slot(const Shuffle& shuffle, i64 token, int rank, int leading) {
    return u64(token * shuffle.results_of_token + (shuffle.k < shuffle.team.size ? leading : rank));
}

// The rows of a warp's token on this rank, in shared memory.
struct Rows {
    u32 row[kMaxChoices];
    int leading;  // the choice of the first row

    // All lanes of the warp. way(c) returns the way of choice c; keep(number, c, way) is called for
    // each row. Returns the number of rows.
    template <class Way, class Keep>
    __device__ int list(int k, Way way, Keep keep) {
        const u32 lane = threadIdx.x % 32;
        int count = 0;
        __syncwarp();  // the last token's rows have been used
        #pragma unroll 1
        for (int begin = 0; begin < k; begin += 32) {
            const int c = begin + int(lane);
            const u32 mine = c < k ? way(c) : kNoWay;
            const u32 present = __ballot_sync(0xffffffffu, mine != kNoWay);
            const int before = count + __popc(present & ((1u << lane) - 1));
            if (mine != kNoWay) {
                row[before] = mine;
                keep(before, c, mine);
            }
            if (mine != kNoWay && before == 0) leading = c;
            count += __popc(present);
        }
        __syncwarp();
        return count;
    }
};

// All threads clear this rank's own slot of the next operation when the epoch begins anew, as
// Channel::scrub does with those of peers: packets of 2^32 operations ago would look new.
__device__ void scrub_own_slots(const Shuffle& shuffle, const Channel& channel) {
    if (channel.epoch != 0xffffffffu && channel.epoch != 2) return;
    const u64 slot = u64(blockIdx.x) * 2 + ((channel.epoch + 1) & 1),
              packets = shuffle.team.slot_packets;
    const u64 places = u64(shuffle.team.slot_rows) * (kRowNbytes / kPackNbytes);
    for (u64 i = threadIdx.x; i < packets; i += blockDim.x)
        st_packet_sys(shuffle.own_slots + slot * packets + i, Pack{0, 0});
    for (u64 i = threadIdx.x; i < places; i += blockDim.x)
        st_packet_sys(shuffle.own_rows + slot * places + i, Pack{0, 0});
    __syncthreads();
}

// Whether packets from all ranks, though not from their blocks with this block's number, show that all have
// entered the operation (Channel::leave). They do not in the operation in which those blocks clear their
// slots.
__device__ __forceinline__ bool counts_as_entered(const Channel& channel) {
    return channel.epoch != 2;
}
