// Few tokens travel as packets, which carry their own flags: one trip, and nobody waits for a signal or a barrier.
//
// A block's slot for a source holds, after the counts of a dispatch of many tokens:
//   how many tokens the source has, of this dispatch: so all ranks know whether all have few;
//   one word for each choice of theirs: its place, its number in its bucket, its weight;
//   and *steps*: what one warp moves at a time, 32 packs of a row and the scales that go with them.
// From all ranks' choices every rank knows where each row belongs, on whatever rank, as if it had counts.
//
// Steps are divided among the blocks like cards, so that many blocks move one token.
#pragma once
#include "packet.cuh"
#include "shuffle.cuh"

constexpr int kMostFewChoices = 1024;                      // of all ranks together
constexpr int kMostFewCounts = 4096;                       // buckets times ranks
constexpr u32 kStepPacks = 32, kStepScales = 4;            // of a step
constexpr u32 kStepPackets = 2 * kStepPacks + kStepScales;
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

// The steps of a block.
struct Steps {
    const Shuffle& shuffle;
    const u64 row_packs;  // of what travels: rows there, results back

    __device__ u32 steps() const { return u32((row_packs + kStepPacks - 1) / kStepPacks); }

    // Without room for few tokens, not even none are.
    __device__ bool are_few(i64 tokens) const { return tokens <= shuffle.few_tokens && shuffle.few_tokens > 0; }

    // Steps of this block, of `tokens` tokens.
    __device__ u32 jobs(i64 tokens) const {
        const u32 all = u32(tokens) * steps();
        return all > blockIdx.x ? (all - blockIdx.x + gridDim.x - 1) / gridDim.x : 0;
    }

    struct Step {
        i64 token;
        u64 first;     // pack of the row
        u32 position;  // in a slot
    };

    // Warps of the block take turns at the sources' steps: `each(source, step)`.
    template <class Each>
    __device__ void share(const i64* tokens, Each each) const {
        const u32 size = u32(shuffle.team.size), turns = jobs(most_of(tokens)) * size;
        for (u32 turn = threadIdx.x / 32; turn < turns; turn += blockDim.x / 32) {
            const u32 job = turn / size, source = turn - job * size;
            const Step found = step(job);
            if (found.token < tokens[source]) each(int(source), found);
        }
    }

    // Of the rank that has most.
    __device__ i64 most_of(const i64* tokens) const {
        i64 most = 0;
#pragma unroll 1
        for (int rank = 0; rank < shuffle.team.size; ++rank) most = tokens[rank] > most ? tokens[rank] : most;
        return most;
    }

    __device__ Step step(u32 job) const {
        const u32 number = blockIdx.x + job * gridDim.x;
        const u32 choices = 1 + u32(shuffle.few_tokens * shuffle.k);
        const u32 token = number / steps();
        return Step{token, (number - token * steps()) * kStepPacks, choices + job * kStepPackets};
    }
};

struct Slots {  // in shared memory, since finding one takes its time: what this rank sends to each, and has from each
    Pack* out[kMaxRanks];
    Pack* in[kMaxRanks];
};

struct FewTokens : Steps {
    const u32 epoch;
    Slots& slots;

    // Thread r: those of rank r, which other threads know after a barrier.
    __device__ void find_slots() const {
        const int rank = int(threadIdx.x), me = shuffle.team.rank;
        if (rank >= shuffle.team.size) return;
        slots.out[rank] = slot(rank, me);
        slots.in[rank] = slot(me, rank);
    }

    __device__ const Pack* inbox(int source) const { return slots.in[source]; }

    __device__ void send_word(int holder, u32 position, u64 word) const {
        st_packet_sys(slots.out[holder] + position, make_packet(word, epoch));
    }

    __device__ void send(int holder, u32 position, Pack pack) const {
        send_word(holder, position, pack.x);
        send_word(holder, position + 1, pack.y);
    }

    __device__ bool receive_word(int source, u32 position, u64& word) const {
        Patience patience;
        for (;;) {
            const Pack packet = ld_packet_sys(inbox(source) + position);
            word = payload(packet);
            if (is_new(packet, epoch)) return true;
            if (!patience.lasts(shuffle.team, [&] { return awaited(source, packet); })) return false;
        }
    }

    // How many tokens `source` has; if they are few and choice `i` is one of theirs, this choice as well.
    __device__ bool receive_choice(int source, u32 i, u64& tokens, u64& word) const {
        const Pack* packets = inbox(source);
        const u32 position = i < shuffle.few_tokens * shuffle.k ? 1 + i : 0;
        Patience patience;
        for (;;) {
            const Pack count = ld_packet_sys(packets), choice = ld_packet_sys(packets + position);
            tokens = payload(count);
            word = payload(choice);
            const bool wanted = is_new(count, epoch) && i < choices_of(tokens);
            if (is_new(count, epoch) && (!wanted || is_new(choice, epoch))) return true;
            if (!patience.lasts(shuffle.team, [&] { return awaited(source, wanted ? choice : count); })) return false;
        }
    }

    // Choices that a source with so many tokens has sent.
    __device__ u32 choices_of(u64 tokens) const {
        return are_few(i64(tokens)) ? u32(tokens) * u32(shuffle.k) : 0;
    }

    struct StepPackets { Pack first, second, scale; };  // of a lane

    // What there is of a step now.
    __device__ StepPackets look(int source, u32 position, bool begins_group) const {
        const u32 lane = threadIdx.x % 32;
        const Pack* packets = inbox(source) + position + 2 * lane;
        const Pack* scales = inbox(source) + position + 2 * kStepPacks + lane / (kStepPacks / kStepScales);
        StepPackets found{ld_packet_sys(packets), ld_packet_sys(packets + 1), {}};
        found.scale = begins_group ? ld_packet_sys(scales) : found.first;
        return found;
    }

    // A lane's pack of a step, and, where a group begins, its scale; `found` is what there was when somebody looked.
    __device__ bool receive_step(
        int source, u32 position, bool begins_group, StepPackets found, Pack& pack, float& scale) const {
        Patience patience;
        for (;; found = look(source, position, begins_group)) {
            pack = Pack{payload(found.first), payload(found.second)};
            scale = bits_as<float>(u32(payload(found.scale)));
            if (is_new(found.first, epoch) && is_new(found.second, epoch) && is_new(found.scale, epoch)) return true;
            const Pack& stale = is_new(found.first, epoch) ? is_new(found.second, epoch) ? found.scale : found.second : found.first;
            if (!patience.lasts(shuffle.team, [&] { return awaited(source, stale); })) return false;
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

    // All threads of the block: tell all ranks how many tokens there are, and learn how many they have.
    __device__ void tell_count(i64 tokens) const {
        if (int(threadIdx.x) < shuffle.team.size) send_word(int(threadIdx.x), 0, u64(tokens));
    }

    __device__ bool learn_counts(i64* tokens) const {
        const int source = int(threadIdx.x);
        u64 count = 0;
        const bool ok = source >= shuffle.team.size || receive_word(source, 0, count);
        if (source < shuffle.team.size) tokens[source] = i64(count);
        return Channel::everyone(ok);
    }

    // Do all have few? Alike in all threads and on all ranks.
    __device__ bool all_have(const i64* tokens) const { return are_few(most_of(tokens)); }

  private:
    // A rank's block has a place for what it sends to itself, too, which no other ever sees.
    __device__ Pack* slot(int holder, int source) const {
        const Team& team = shuffle.team;
        Pack* own = shuffle.own_slots + u64(blockIdx.x) * team.slot_packets;
        if (holder != source) {
            const u32 place = u32(source > holder ? source - holder : source - holder + team.size) - 1;
            const u64 slots = (u64(blockIdx.x) * 2 + (epoch & 1)) * (u32(team.size) - 1) + place;
            own = reinterpret_cast<Pack*>(team.base[holder] + team.packets_offset) + slots * team.slot_packets;
        }
        return own + few_at();
    }

    // The counts of a dispatch of many tokens come before, four in two packets.
    __device__ u32 few_at() const { return (u32(shuffle.buckets) + 3) / 4 * 2; }

    __device__ Awaited awaited(int source, Pack stale) const {
        return Awaited{epoch, int(blockIdx.x), source, epoch, stale.x >> 32};
    }
};
