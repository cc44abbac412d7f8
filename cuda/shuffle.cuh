// Token dispatch and combine: the memory they share, how a row is described, and the signals between ranks.
//
// A token's *choice* is one of its k experts. Every choice becomes a row on a rank that has the expert; the data
// travels once to each rank, to the first of the token's rows there (the *leader*), and is copied on there.
// Ranks talk through a workspace of the shuffle's own, which is laid out like a lease, with larger packet slots.
#pragma once
#include "channel.cuh"
#include "vector.cuh"

constexpr int kMaxBuckets = 1024;  // of all ranks together
constexpr u64 kNoRow = ~u64(0);    // a route that leads nowhere: no expert was chosen, or there was no room

enum Phase : i64 { kSend = 1, kReceive = 2 };

// What never changes of a shuffle. Rows of a rank are grouped in *buckets*: one for each of its experts, or one
// for each source (by_source).
struct Shuffle {
    Team team;  // of the shuffle: base[] are the workspaces
    char* rows[kMaxRanks];     // every rank's memory, as mapped in this process: [capacity] rows,
    char* scales[kMaxRanks];   //   [capacity][groups] float, for Float8,
    char* links[kMaxRanks];    //   [capacity] Link,
    char* results[kMaxRanks];  //   [tokens][results_of_token] rows, where results come back,
    char* values[kMaxRanks];   //   [tokens][k] float, where single numbers come back
    const u32* places;         // [experts][replicas]: expert_place
    int* histograms;           // [blocks][buckets]: how many choices of a block go to each bucket
    int* matrix;               // [size][buckets]: how many of a rank
    i64 experts, replicas, k;
    i64 hidden;            // elements of a row, a multiple of 16
    i64 capacity;          // rows of a rank
    i64 results_of_token;  // ranks that a token's results can come from, at most
    i64 buckets;           // of all ranks
    i64 by_source;
    i64 drops;                     // rows without room are left out; 0: they are an error
    i64 first[kMaxRanks + 1];      // the first bucket of every rank
};

// Where an expert is: a rank, and which of the rank's experts it is.
__device__ __forceinline__ u32 expert_place(int rank, u32 local) { return u32(rank) << 16 | local; }
__device__ __forceinline__ int place_rank(u32 place) { return int(place >> 16); }
__device__ __forceinline__ u32 place_local(u32 place) { return place & 0xffff; }

// Where a choice goes: the row it becomes, and the place of the expert.
__device__ __forceinline__ u64 make_route(u32 row, u32 place) { return u64(place) << 32 | row; }
__device__ __forceinline__ u32 route_row(u64 route) { return u32(route); }
__device__ __forceinline__ u32 route_place(u64 route) { return u32(route >> 32); }
__device__ __forceinline__ int route_rank(u64 route) { return place_rank(route_place(route)); }

// What a rank knows of a row that it has: the token's other rows here follow it, in the order of its choices.
struct Link {
    u32 token;      // on its own rank
    u32 local;      // the expert, among the rank's
    u32 source;     // the token's rank
    u32 ordinal;    // which of the ranks that have rows of the token this is, in rank order
    u32 choice;     // which of the token's
    bool leader;    // the first of the token's rows here
    int next;       // the next one; -1: it is the last
    float weight;

    __device__ Pack pack() const {
        const u64 which = u64(source) << 48 | u64(ordinal) << 52 | u64(choice) << 56 | u64(leader) << 63;
        return Pack{which | u64(local) << 32 | token, u64(bits_of(weight)) << 32 | u32(next)};
    }

    __device__ static Link unpack(Pack pack) {
        Link link;
        link.token = u32(pack.x);
        link.local = u32(pack.x >> 32) & 0xffff;
        link.source = u32(pack.x >> 48) & 0xf;
        link.ordinal = u32(pack.x >> 52) & 0xf;
        link.choice = u32(pack.x >> 56) & 0x7f;
        link.leader = pack.x >> 63 != 0;
        link.next = int(u32(pack.y));
        const u32 bits = u32(pack.y >> 32);
        memcpy(&link.weight, &bits, sizeof bits);
        return link;
    }

  private:
    __device__ static u32 bits_of(float value) {
        u32 bits;
        memcpy(&bits, &value, sizeof bits);
        return bits;
    }
};

// The ranks that have rows of a token, as bits.
__device__ __forceinline__ u32 ranks_of(const u64* routes, i64 k) {
    u32 ranks = 0;
    for (i64 c = 0; c < k; ++c)
        if (routes[c] != kNoRow) ranks |= 1u << route_rank(routes[c]);
    return ranks;
}

// This block's tokens: a range, so that the blocks' tokens follow each other.
struct Range {
    i64 begin, end;

    __device__ explicit Range(i64 tokens) {
        const i64 each = (tokens + gridDim.x - 1) / gridDim.x;
        begin = i64(smaller(u64(each) * blockIdx.x, u64(tokens)));
        end = i64(smaller(u64(begin + each), u64(tokens)));
    }
};

// Rows are divided among the blocks like cards: block b has rows b, b + blocks, …
__device__ __forceinline__ u32 cards(i64 total) {
    return total > i64(blockIdx.x) ? u32((total - blockIdx.x + gridDim.x - 1) / gridDim.x) : 0;
}

// Words that say what a block has done in this operation. They lie where other operations keep how far a ring is
// filled (ChannelControl::head), so that they are scrubbed like these. Ring 0: block b of rank s has stored all that
// it had to store here. Ring 1: this rank's block b has counted.
struct Signals {
    const Team& team;
    const u32 epoch;

    // After a barrier of the block.
    __device__ void say_counted() const {
        if (threadIdx.x != 0) return;
        fence_sys();
        st_relaxed_sys(word(1, team.rank, int(blockIdx.x), team.rank), mark());
    }

    // All threads wait for this rank's other blocks.
    __device__ bool await_counted() const {
        bool ok = true;
        for (u32 block = threadIdx.x; ok && block < gridDim.x; block += blockDim.x) ok = wait(1, int(block), team.rank);
        return Channel::everyone(ok);
    }

    // To all ranks, this one too; after a barrier of the block.
    __device__ void say_stored() const {
        if (int(threadIdx.x) >= team.size) return;
        fence_sys();
        st_relaxed_sys(word(0, int(threadIdx.x), int(blockIdx.x), team.rank), mark());
    }

    // All threads wait until every block of every rank has stored.
    __device__ bool await_stored() const {
        bool ok = true;
        for (u32 i = threadIdx.x; ok && i < gridDim.x * team.size; i += blockDim.x)
            ok = wait(0, int(i / team.size), int(i % team.size));
        return Channel::everyone(ok);
    }

  private:
    __device__ u64 mark() const { return (u64(epoch) << 32) + 1; }
    __device__ u64* word(int ring, int holder, int block, int source) const {
        return &channel_control(team, holder, block)->head[ring][source];
    }
    __device__ bool wait(int ring, int block, int source) const {
        return wait_for(team, word(ring, team.rank, block, source), Awaited{epoch, block, source, mark(), 0});
    }
};

// The two halves of an operation, in one launch or in two. `send(channel)` says whether all peers are known to have
// entered; its stores end before every rank is told of them. `receive()` begins when all ranks' stores are there.
template <class Send, class Receive>
__device__ void run_phases(const Team& team, i64 phases, Send send, Receive receive) {
    bool ok = true;
    u32 epoch = channel_control(team, team.rank, int(blockIdx.x))->epoch;  // of the first half
    if (phases & kSend) {
        Channel channel(team);
        epoch = channel.epoch;
        ok = Channel::everyone(send(channel));
        if (ok) Signals{team, epoch}.say_stored();
        channel.leave(ok);
    }
    if (!ok || !(phases & kReceive)) return;
    if (Signals{team, epoch}.await_stored()) receive();
}
