// Token dispatch and combine: the memory they share, where a choice goes, and the signals between ranks.
//
// A token's *choice* is one of its k experts. Every choice becomes a row on a rank that has the expert; the data
// travels once to each rank, to the first of the token's rows there (the *leader*), and is copied on there. A rank
// knows the rows that it has of a token as its *ways*: one word a choice.
//
// Tokens are divided among the blocks; block b of a rank deals with the tokens that block b of any other has. Its warps take
// them one after the other, whoever is free; some send while others deal with what has arrived, stage by stage. Ranks talk
// through a workspace of the shuffle's own, which is laid out like a lease.
#pragma once
#include "channel.cuh"
#include "lanes.cuh"
#include "numbers.cuh"
#include "vector.cuh"

constexpr int kMaxBuckets = 1024;  // of all ranks together
constexpr int kMaxChoices = 128;   // of a token
constexpr int kMaxWarps = kMaxThreads / 32;
constexpr u64 kNoRow = ~u64(0);    // a route that leads nowhere: no expert was chosen, or there was no room
constexpr u32 kNoWay = ~u32(0);    // a choice that has no row here
constexpr u32 kStageTokens = 16;   // of a block and a source, at least; then the receiver is told
constexpr u32 kMostStages = 32;    // of a block
constexpr u32 kMostParts = 8;      // of a token

enum Phase : i64 { kSend = 1, kReceive = 2 };
__device__ __forceinline__ bool is_whole(i64 phases) { return phases == (kSend | kReceive); }

// Whether the kernel takes few multiprocessors: two blocks of half of the threads share one. It reckons that itself, for with a
// word of the arguments to look at the loop of combine that adds rows had a load less on its way (1024 tokens 93 µs, not 79).
__device__ __forceinline__ bool takes_few() { return gridDim.x * blockDim.x <= kMostEarlyThreads; }

// What never changes of a shuffle. Rows of a rank are grouped in *buckets*: one for each of its experts, or one
// for each source (by_source).
struct Shuffle {
    Team team;  // of the shuffle: base[] are the workspaces
    char* rows[kMaxRanks];     // every rank's memory, as mapped in this process: [capacity] rows,
    char* scales[kMaxRanks];   //   [capacity][groups] float, for Float8,
    char* ways[kMaxRanks];     //   [size][max_tokens][k] u32, what the sources say,
    char* notes[kMaxRanks];    //   [size][max_tokens][k] u64, and of these choices,
    char* results[kMaxRanks];  //   [max_tokens][results_of_token] rows, where results come back,
    char* values[kMaxRanks];   //   [max_tokens][k] float, where single numbers come back
    const u32* places;         // [experts][replicas]: expert_place
    int* histograms;           // [blocks][buckets]: how many choices of a block go to each bucket
    int* matrix;               // [size][buckets]: how many of a rank
    Pack* own_slots;           // [blocks][2][slot_packets]: the packets that this rank sends to itself, see few_tokens.cuh,
    Pack* own_rows;            // [blocks][2][slot_rows][kRowPlaces]: and its rows of lines
    i64 experts, replicas, k;
    i64 hidden;            // elements of a row, a multiple of 16
    i64 capacity;          // rows of a rank
    i64 max_tokens;        // of a rank
    i64 few_tokens;        // up to so many of each rank travel as lines
    i64 alone_choices;     // up to so many of its rank every block counts for itself
    i64 words_at;          // in a slot of packets: what a block tells of few tokens
    i64 results_of_token;  // ranks that a token's results can come from, at most
    i64 buckets;           // of all ranks
    i64 by_source;
    i64 drops;                     // rows without room are left out; 0: they are an error
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

// Where a choice goes: the row it becomes, and the place of the expert.
__device__ __forceinline__ u64 make_route(u32 row, u32 place) { return u64(place) << 32 | row; }
__device__ __forceinline__ u32 route_row(u64 route) { return u32(route); }
__device__ __forceinline__ u32 route_place(u64 route) { return u32(route >> 32); }
__device__ __forceinline__ int route_rank(u64 route) { return place_rank(route_place(route)); }

// What a rank is told of a choice that has a row there: the expert, among its own, and the weight.
__device__ __forceinline__ u64 make_note(u32 local, float weight) { return u64(local) << 32 | bits_as<u32>(weight); }
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

// Where the result of a token from `rank` comes back: a token has as many places as ranks that it can have rows on.
__device__ __forceinline__ u64 result_slot(const Shuffle& shuffle, i64 token, int rank, int leading) {
    return u64(token * shuffle.results_of_token + (shuffle.k < shuffle.team.size ? leading : rank));
}

// The rows that a warp's token has here, in shared memory.
struct Rows {
    u32 row[kMaxChoices];
    int leading;  // the choice of the first

    // All lanes of the warp; `way(c)` is what choice c has here, `keep(number, c, way)` is told of each row. Returns how
    // many there are.
    template <class Way, class Keep>
    __device__ int list(int k, Way way, Keep keep) {
        const u32 lane = threadIdx.x % 32;
        int count = 0;
        __syncwarp();  // those of the last token have been used
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

// This block's tokens: a range, so that the blocks' tokens follow each other.
struct Range {
    i64 begin = 0, end = 0;

    Range() = default;
    __device__ explicit Range(i64 tokens) {
        const i64 each = (u32(tokens) + gridDim.x - 1) / gridDim.x;  // there are less than 2^31
        begin = i64(smaller(u64(each) * blockIdx.x, u64(tokens)));
        end = i64(smaller(u64(begin + each), u64(tokens)));
    }

    __device__ u32 length() const { return u32(end - begin); }
};

// A thread of the warps that share a token's row: for (i = member; i < packs; i += members).
struct Share {
    u32 member, members;
};

// What a block does with its tokens: with those of some sources, as many of each as the one with most has, which the others
// may not have. A job is a token, or a part of one where tokens are few.
struct Jobs {
    const u32 sources, tokens, stage_tokens, parts;

    // `longest`: what this block has of the rank that has most there, so that all ranks agree on the stages.
    __device__ Jobs(u32 sources, u32 tokens, u32 longest)
        : sources(sources), tokens(tokens), stage_tokens(stage_of(longest)), parts(parts_of(sources * tokens)) {}

    __device__ u32 count() const { return sources * tokens * parts; }
    __device__ u32 source(u32 job) const { return job / parts % sources; }
    __device__ u32 token(u32 job) const { return job / (parts * sources); }
    __device__ u32 stage(u32 job) const { return token(job) / stage_tokens; }
    __device__ Share share(u32 job) const { return Share{job % parts * 32 + threadIdx.x % 32, parts * 32}; }
    __device__ u32 stages() const { return (tokens + stage_tokens - 1) / stage_tokens; }

    // How many there are of a stage.
    __device__ u32 in_stage(u32 stage) const {
        return u32(smaller(stage_tokens, tokens - stage * stage_tokens)) * sources * parts;
    }

  private:
    static __device__ u32 stage_of(u32 longest) {
        const u32 least = (longest + kMostStages - 1) / kMostStages;
        return least > kStageTokens ? least : kStageTokens;
    }
    static __device__ u32 parts_of(u32 tokens) {
        const u32 warps = blockDim.x / 32;
        return tokens == 0 || tokens >= warps ? 1 : u32(smaller(warps / tokens, kMostParts));
    }
};

// Warps of a block take jobs of each half one after the other, so that none waits for one whose token has many rows. In shared
// memory.
struct Queue {
    u32 taken[2];           // of kSend, of kReceive
    u32 left[kMostStages];  // jobs of each stage to be done, and the one before it to be told

    // All threads.
    __device__ void begin(const Jobs& sent) {
        if (threadIdx.x < 2) taken[threadIdx.x] = 0;
        for (u32 stage = threadIdx.x; stage < sent.stages(); stage += blockDim.x)
            left[stage] = sent.in_stage(stage) + (stage > 0);
        __syncthreads();
    }

    // All lanes of a warp, as in the following.
    __device__ u32 take(Phase half) {
        u32 job = 0;
        if (threadIdx.x % 32 == 0) job = atomicAdd(&taken[half - 1], 1u);
        return __shfl_sync(0xffffffffu, job, 0);
    }

    // Was that the last that a stage waits for?
    __device__ bool finish(u32 stage) {
        __syncwarp();
        u32 before = 0;
        if (threadIdx.x % 32 == 0) before = atomic_add_block(&left[stage], ~0u);
        before = __shfl_sync(0xffffffffu, before, 0);
        __syncwarp();
        return before == 1;
    }
};

// The most tokens of a rank that are this block's. All lanes of a warp.
__device__ __forceinline__ u32 longest_range(const i64* tokens, int size) {
    const int lane = int(threadIdx.x % 32);
    return __reduce_max_sync(kWholeWarp, lane < size ? Range(tokens[lane]).length() : 0);
}

// Nobody stores where others may still read what came last time: before they have entered the operation. A warp waits for that
// once it has something to store.
class Gate {
    const Channel& channel;
    bool is_open;

  public:
    __device__ Gate(const Channel& channel, bool is_open) : channel(channel), is_open(is_open) {}

    // All lanes of a warp. False: leave.
    __device__ bool pass() {
        if (is_open) return true;
        const int peer = int(threadIdx.x % 32);
        is_open = __all_sync(kWholeWarp, !channel.is_peer(peer) || channel.wait_for_entered(peer, channel.epoch));
        __syncwarp();
        return is_open;
    }
};

// Whether this warp deals at first with what arrives: if both halves are in this launch, and there are several stages, `sending`
// of kMaxWarps do not, and of fewer the same share, but one at least.
__device__ __forceinline__ bool receives_first(i64 phases, u32 sending, u32 stages) {
    const u32 warps = blockDim.x / 32, senders = (warps * sending + kMaxWarps - 1) / kMaxWarps;
    return is_whole(phases) && stages > 1 && warps > 1 && threadIdx.x / 32 >= smaller(senders, warps - 1);
}

// Packets that this block has sent to its rank and left alone for 2^32 operations would look new, as those of peers would: the
// slot of the next operation is cleared (Channel::scrub). All threads.
__device__ void scrub_own_slots(const Shuffle& shuffle, const Channel& channel) {
    if (channel.epoch != 0xffffffffu && channel.epoch != 2) return;
    const u64 slot = u64(blockIdx.x) * 2 + ((channel.epoch + 1) & 1), packets = shuffle.team.slot_packets;
    const u64 places = u64(shuffle.team.slot_rows) * (kRowNbytes / kPackNbytes);
    for (u64 i = threadIdx.x; i < packets; i += blockDim.x) st_packet_sys(shuffle.own_slots + slot * packets + i, Pack{0, 0});
    for (u64 i = threadIdx.x; i < places; i += blockDim.x) st_packet_sys(shuffle.own_rows + slot * places + i, Pack{0, 0});
    __syncthreads();
}

// Once a block has heard of all ranks, though not from their blocks of its own number: has it heard all that the next operation
// must know? Not if those clear their slots in this one.
__device__ __forceinline__ bool hears_enough(const Channel& channel) { return channel.epoch != 2; }

// Words that say what a block has done in this operation. They lie where other operations keep how far a ring is
// filled (ChannelControl::head), so that they are scrubbed like these. Ring 0: how many stages block b of rank s has
// stored here. Ring 1: this rank's block b has counted.
struct Signals {
    const Team& team;
    const u32 epoch;

    // After a barrier of the block.
    __device__ void say_counted() const {
        if (threadIdx.x != 0) return;
        fence_sys();
        st_relaxed_sys(word(1, team.rank, int(blockIdx.x), team.rank), mark(1));
    }

    // All threads wait for this rank's other blocks.
    __device__ bool await_counted() const {
        bool ok = true;
        for (u32 block = threadIdx.x; ok && block < gridDim.x; block += blockDim.x)
            ok = wait(1, int(block), team.rank, 1);
        return Channel::everyone(ok);
    }

    // A warp has done a job of a stage: if this was the last one, and all before it are told, tells all ranks.
    __device__ void finish(Queue& queue, u32 stage, u32 stages) const {
        for (bool last = queue.finish(stage); last; last = ++stage < stages && queue.finish(stage)) tell_stored(stage + 1);
    }

    // A warp that has seen them stored tells all ranks, this one too.
    __device__ void tell_stored(u32 stages) const {
        const int rank = int(threadIdx.x % 32);
        if (rank >= team.size) return;
        fence_sys();
        st_relaxed_sys(word(0, rank, int(blockIdx.x), team.rank), mark(stages));
    }

    // A warp waits until this block of every rank has stored so many stages; `needed(source)` of it.
    template <class Needed>
    __device__ bool await_stored(Needed needed) const {
        const int source = int(threadIdx.x % 32);
        const i64 stages = source < team.size ? needed(source) : 0;
        const bool ok = __all_sync(0xffffffffu, stages == 0 || wait(0, int(blockIdx.x), source, stages));
        __syncwarp();
        return ok;
    }

  private:
    __device__ u64 mark(i64 count) const { return (u64(epoch) << 32) + u64(count); }
    __device__ u64* word(int ring, int holder, int block, int source) const {
        return &channel_control(team, holder, block)->head[ring][source];
    }
    __device__ bool wait(int ring, int block, int source, i64 count) const {
        return wait_for(team, word(ring, team.rank, block, source), Awaited{epoch, block, source, mark(count), 0});
    }
};
