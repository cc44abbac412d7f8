// Few tokens travel as packets, which carry their own flags: one trip, and nobody waits for a signal or a barrier.
//
// A rank tells every other
//   how many tokens it has, of this dispatch: so all ranks know whether all have few;
//   one word for each choice of theirs: its place, its number in its bucket, its weight.
// Its blocks tell a share each, in their slots, and all blocks of a rank read all shares: a slot is written in an operation
// once a block of its reader has entered the one before, and then all blocks have left the one before that. From all ranks'
// choices every block knows where each row belongs, on whatever rank, as if it had counts.
//
// The rows come in *steps*: what one warp moves at a time, 32 packs of a row and the scales that go with them. They are
// divided among the blocks like cards, so that many blocks move one token, and a step goes from block b to block b.
#pragma once
#include "packet.cuh"
#include "shuffle.cuh"

constexpr int kMostFewChoices = 1024;                      // of all ranks together
constexpr int kMostFewCounts = 4096;                       // buckets times ranks
constexpr u32 kStepPacks = 32, kStepScales = 4;            // of a step
constexpr u32 kStepPackets = 2 * kStepPacks + kStepScales;
constexpr u32 kStepLanes = kStepPacks / kStepScales;       // with one scale
constexpr int kSourcesAtOnce = 4;                          // whose packets are fetched before the first is looked at
constexpr u32 kNoChoice = ~u32(0);
constexpr int kNoPlace = -1;

// A choice as a word: what stands in its place is in 4, 16 and 12 bits.
__device__ __forceinline__ u64 choice_word(u32 place, u32 number, float weight) {
    return u64(bits_as<u32>(weight)) << 32 | place << 12 | number;
}
__device__ __forceinline__ bool is_choice(u64 word) { return u32(word) != kNoChoice; }
__device__ __forceinline__ u32 choice_place(u64 word) { return u32(word) >> 12; }
__device__ __forceinline__ u32 choice_number(u64 word) { return u32(word) & 0xfff; }
__device__ __forceinline__ float choice_weight(u64 word) { return bits_as<float>(u32(word >> 32)); }

struct Step {
    u32 token = 0;
    u32 first = 0;     // pack of the row
    u32 position = 0;  // in a slot

    __device__ u64 known() const { return token ^ first ^ position; }
};

// The steps of a block. What a warp begins with is found while the kernel before still runs: a division takes as long as a
// dozen other instructions.
struct Steps {
    const Shuffle& shuffle;
    const u32 row_packs;  // of what travels: rows there, results back

    // Without room for few tokens, not even none are.
    __device__ bool are_few(i64 tokens) const { return tokens <= shuffle.few_tokens && shuffle.few_tokens > 0; }

    // Has this block a step `job`, if there are so many tokens?
    __device__ bool has(u32 job, i64 tokens) const { return number(job) < u32(tokens) * steps(); }

    __device__ Step step(u32 job) const {
        const u32 token = number(job) / steps();
        return Step{token, (number(job) - token * steps()) * kStepPacks, u32(shuffle.steps_at) + job * kStepPackets};
    }

    // A warp's turn at the steps of some source.
    struct Turn {
        u32 job = 0, source = 0;
        Step step;

        Turn() = default;
        __device__ Turn(const Steps& steps, u32 turn)
            : job(turn / u32(steps.shuffle.team.size)), source(turn - job * u32(steps.shuffle.team.size)), step(steps.step(job)) {}

        __device__ u64 known() const { return u64(source) << 32 ^ step.known(); }
    };

    __device__ Turn first_turn() const { return Turn(*this, threadIdx.x / 32); }

    // Warps of the block take turns: `each(source, step)`.
    template <class Each>
    __device__ void share(const i64* tokens, Turn turn, Each each) const {
        const u32 size = u32(shuffle.team.size), warps = blockDim.x / 32;
        for (const i64 most = most_of(tokens); has(turn.job, most); turn = Turn(*this, turn.job * size + turn.source + warps))
            if (turn.step.token < tokens[turn.source]) each(int(turn.source), turn.step);
    }

    // Of the rank that has most.
    __device__ i64 most_of(const i64* tokens) const {
        i64 most = 0;
#pragma unroll 4
        for (int rank = 0; rank < shuffle.team.size; ++rank) most = tokens[rank] > most ? tokens[rank] : most;
        return most;
    }

  private:
    __device__ u32 steps() const { return (row_packs + kStepPacks - 1) / kStepPacks; }
    __device__ static u32 number(u32 job) { return blockIdx.x + job * gridDim.x; }  // of all blocks' steps
};

struct Slots {  // in shared memory, since finding one takes its time
    Pack* out[kMaxRanks];    // what this block sends to each rank,
    Pack* in[kMaxRanks];     //   and has from the same block of each,
    Pack* first[kMaxRanks];  //   and what this rank has from each one's first block
};

// Packets between a rank's slots for blocks of `source` that follow each other: two parities of those for all sources.
__device__ __forceinline__ u32 slot_stride(const Shuffle& shuffle, int source) {
    return 2 * shuffle.team.slot_packets * (source == shuffle.team.rank ? 1 : u32(shuffle.team.size) - 1);
}

// Thread r finds those of rank r, in operations of even epochs, before it knows the epoch.
struct FoundSlots {
    Pack *out = nullptr, *first = nullptr;
    u32 stride = 0;

    __device__ void find(const Shuffle& shuffle) {
        const int rank = int(threadIdx.x), me = shuffle.team.rank;
        if (rank >= shuffle.team.size) return;
        stride = slot_stride(shuffle, rank);
        out = first_slot(shuffle, rank, me) + u64(blockIdx.x) * stride;
        first = first_slot(shuffle, me, rank);
    }

    __device__ u64 known() const { return u64(out) ^ u64(first) ^ stride; }

  private:
    // A rank has a place for what it sends to itself, too, which no other ever sees.
    __device__ static Pack* first_slot(const Shuffle& shuffle, int holder, int source) {
        const Team& team = shuffle.team;
        if (holder == source) return shuffle.own_slots;
        const u32 place = u32(source > holder ? source - holder : source - holder + team.size) - 1;
        return reinterpret_cast<Pack*>(team.base[holder] + team.packets_offset) + u64(place) * team.slot_packets;
    }
};

struct FewTokens : Steps {
    const u32 epoch;
    Slots& slots;

    // Those that thread r has found are rank r's; other threads know them after a barrier.
    __device__ void keep(const FoundSlots& found) const {
        const int rank = int(threadIdx.x);
        if (rank >= shuffle.team.size) return;
        const u64 odd = epoch & 1 ? found.stride / 2 : 0;
        slots.out[rank] = found.out + odd;
        slots.first[rank] = found.first + odd;
        slots.in[rank] = found.first + odd + u64(blockIdx.x) * found.stride;
    }

    __device__ const Pack* inbox(int source) const { return slots.in[source]; }

    // What block `block` of `source` has told this rank.
    __device__ const Pack* told(int source, u32 block, u32 position) const {
        return slots.first[source] + u64(block) * slot_stride(shuffle, source) + position;
    }

    __device__ void send_word(int holder, u32 position, u64 word) const {
        st_packet_sys(slots.out[holder] + position, make_packet(word, epoch));
    }

    __device__ void send(int holder, u32 position, Pack pack) const {
        send_word(holder, position, pack.x);
        send_word(holder, position + 1, pack.y);
    }

    __device__ bool receive_word(int source, const Pack* place, u64& word) const {
        Patience patience;
        for (;;) {
            const Pack packet = ld_packet_sys(place);
            word = payload(packet);
            if (is_new(packet, epoch)) return true;
            if (!patience.lasts(shuffle.team, [&] { return awaited(source, packet); })) return false;
        }
    }

    __device__ bool receive(int source, const Pack* place, Pack& pack) const {
        return receive_word(source, place, pack.x) && receive_word(source, place + 1, pack.y);
    }

    // Where this rank has choice `i` of a source, block by block, and how many tokens the source has.
    __device__ const Pack* choice(int source, u32 i) const {
        const u32 of_block = i / gridDim.x;
        return told(source, i - of_block * gridDim.x, u32(shuffle.words_at) + 1 + of_block);
    }
    __device__ const Pack* count(int source) const { return told(source, 0, u32(shuffle.words_at)); }

    // How many tokens `source` has; if they are few and choice `i`, which is at `place`, is one of theirs, this choice as well.
    __device__ bool receive_choice(int source, u32 i, const Pack* place, u64& tokens, u64& word) const {
        const Pack* counts = count(source);
        if (i >= shuffle.few_tokens * shuffle.k) place = counts;
        Patience patience;
        for (;;) {
            const Pack first = ld_packet_sys(counts), second = ld_packet_sys(place);
            tokens = payload(first);
            word = payload(second);
            const bool wanted = is_new(first, epoch) && i < choices_of(tokens);
            if (is_new(first, epoch) && (!wanted || is_new(second, epoch))) return true;
            if (!patience.lasts(shuffle.team, [&] { return awaited(source, wanted ? second : first); })) return false;
        }
    }

    // Choices that a source with so many tokens has sent.
    __device__ u32 choices_of(u64 tokens) const {
        return are_few(i64(tokens)) ? u32(tokens) * u32(shuffle.k) : 0;
    }

    // A lane's pack of a step, and, where a group begins, its scale.
    struct Arrival {
        Pack packets[3];

        __device__ Pack pack() const { return Pack{payload(packets[0]), payload(packets[1])}; }
        __device__ float scale() const { return bits_as<float>(u32(payload(packets[2]))); }
    };

    __device__ Arrival look(int source, u32 position, bool begins_group) const {
        const u32 lane = threadIdx.x % 32;
        const Pack* packets = inbox(source) + position;
        const Pack first = ld_packet_sys(packets + 2 * lane), second = ld_packet_sys(packets + 2 * lane + 1);
        return Arrival{{first, second, begins_group ? ld_packet_sys(packets + 2 * kStepPacks + lane / kStepLanes) : first}};
    }

    // Until all of it is new; `arrival` is what a first look has found.
    __device__ bool receive_step(int source, u32 position, bool begins_group, Arrival& arrival) const {
        Patience patience;
        for (;;) {
            const bool first = is_new(arrival.packets[0], epoch), second = is_new(arrival.packets[1], epoch);
            if (first && second && is_new(arrival.packets[2], epoch)) return true;
            const auto what = [&] { return awaited(source, first ? second ? arrival.packets[2] : arrival.packets[1] : arrival.packets[0]); };
            if (!patience.lasts(shuffle.team, what)) return false;
            arrival = look(source, position, begins_group);
        }
    }

    // One pack from each of the sources first, first + 1 … that have a bit in `sources`.
    __device__ bool receive_each(u32 sources, int first, u32 position, Pack (&packs)[kSourcesAtOnce]) const {
        Pack words[kSourcesAtOnce][2];
        Patience patience;
        for (;;) {
#pragma unroll
            for (int s = 0; s < kSourcesAtOnce; ++s)
                if (sources >> (first + s) & 1) {
                    words[s][0] = ld_packet_sys(inbox(first + s) + position);
                    words[s][1] = ld_packet_sys(inbox(first + s) + position + 1);
                }
            int missing = -1;
#pragma unroll
            for (int s = 0; s < kSourcesAtOnce; ++s)
                if ((sources >> (first + s) & 1) && !(is_new(words[s][0], epoch) && is_new(words[s][1], epoch)))
                    missing = first + s;
            if (missing < 0) break;
            const auto what = [&] { return awaited(missing, ld_packet_sys(inbox(missing) + position)); };
            if (!patience.lasts(shuffle.team, what)) return false;
        }
#pragma unroll
        for (int s = 0; s < kSourcesAtOnce; ++s) packs[s] = Pack{payload(words[s][0]), payload(words[s][1])};
        return true;
    }

    // All threads, once they have kept slots: the first block tells all ranks how many tokens there are, and all learn how many
    // they have.
    __device__ void tell_count(i64 tokens) const {
        if (blockIdx.x == 0 && int(threadIdx.x) < shuffle.team.size) send_word(int(threadIdx.x), u32(shuffle.words_at), u64(tokens));
    }

    // All threads: have the ranks told? The last warp asks, which often has no steps.
    __device__ bool hear_counts() const {
        const int source = int(blockDim.x - 1 - threadIdx.x);
        u64 count = 0;
        return source >= shuffle.team.size || receive_word(source, this->count(source), count);
    }

    __device__ bool learn_counts(i64* tokens) const {
        const int source = int(threadIdx.x);
        u64 count = 0;
        const bool ok = source >= shuffle.team.size || receive_word(source, this->count(source), count);
        if (source < shuffle.team.size) tokens[source] = i64(count);
        return Channel::everyone(ok);
    }

    // Do all have few? Alike in all threads and on all ranks.
    __device__ bool all_have(const i64* tokens) const { return are_few(most_of(tokens)); }

  private:
    __device__ Awaited awaited(int source, Pack stale) const {
        return Awaited{epoch, int(blockIdx.x), source, epoch, stale.x >> 32};
    }
};
