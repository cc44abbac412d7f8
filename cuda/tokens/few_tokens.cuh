// Few tokens travel as packets and lines, which carry their own flags: one trip, without a signal
// or a barrier.
//
// A rank sends every rank
//   1. how many tokens it has, so that all ranks compute whether all have few (send_count);
//   2. one word for each choice: its expert's place, its number in its bucket, its weight
//      (dispatch_choices.cuh);
//   3. the tokens' rows in steps of lines (few_steps.cuh).
// Each block sends a share of the words, in its slots, and all blocks of a rank read all shares. A
// slot is written in an operation once a block of its reader has entered the one before; then all
// blocks have left the one before that. From all ranks' choices every block computes where each row
// belongs, on any rank, as if it had counts.
//
// kMostFewChoices and kMostFewCounts follow from shared memory (twins in pyncclx/tokens/memory.py);
// kSourcesAtOnce was not measured by itself.
#pragma once
#include "tokens/few_slots.cuh"
#include "tokens/few_steps.cuh"
#include "protocol/packet.cuh"

constexpr int kMostFewChoices = 1024;                      // choices of all ranks together
constexpr int kMostFewCounts = 4096;                       // buckets times ranks
// sources whose lines are loaded before the first is checked
constexpr int kSourcesAtOnce = 4;
constexpr u32 kNoChoice = ~u32(0);
constexpr int kNoPlace = -1;

// A choice as a word: weight in 32 bits; rank and local number of the expert's place in 4 and 16;
// number in its bucket in 12.
__device__ __forceinline__ u64 choice_word(u32 place, u32 number, float weight) {
    return u64(bits_as<u32>(weight)) << 32 | place << 12 | number;
}
__device__ __forceinline__ bool is_choice(u64 word) { return u32(word) != kNoChoice; }
__device__ __forceinline__ u32 choice_place(u64 word) { return u32(word) >> 12; }
__device__ __forceinline__ u32 choice_number(u64 word) { return u32(word) & 0xfff; }
__device__ __forceinline__ float choice_weight(u64 word) { return bits_as<float>(u32(word >> 32)); }

struct FewTokens : Steps {
    const u32 epoch;
    Slots& slots;

    // Thread r stores the slots of rank r that it has computed; a barrier follows before other
    // threads read them.
    __device__ void keep(const FoundSlots& found) const {
        const int rank = int(threadIdx.x);
        if (rank >= shuffle.team.size) return;
        const u64 odd = epoch & 1 ? found.odd : 0, packets = odd * shuffle.team.slot_packets;
        const u64 places = odd * shuffle.team.slot_rows * kRowPlaces;
        slots.out[rank] = found.out + packets;
        slots.first[rank] = found.first + packets;
        slots.out_rows[rank] = found.out_rows + places;
        slots.in_rows[rank] = found.in_rows + places;
    }

    // Where a packet of block `block` of `source` arrives.
    __device__ const Pack* packet_of_block(int source, u32 block, u32 position) const {
        return slots.first[source] +
            u64(block * slots_between(shuffle, source)) * shuffle.team.slot_packets + position;
    }

    __device__ void send_word(int holder, u32 position, u64 word) const {
        st_packet_sys(slots.out[holder] + position, make_packet(word, epoch));
    }

    __device__ void send(int holder, u32 position, Pack pack) const {
        send_word(holder, position, pack.x);
        send_word(holder, position + 1, pack.y);
    }

    // Returns false if the word has not come; `word` is then 0.
    __device__ bool receive_word(int source, const Pack* place, u64& word) const {
        Patience patience;
        for (word = 0;;) {
            const Pack packet = ld_packet_sys(place);
            if (is_new(packet, epoch)) {
                word = payload(packet);
                return true;
            }
            if (!patience.lasts(shuffle.team, [&] { return awaited(source, packet); }))
                return false;
        }
    }

    __device__ bool receive(int source, const Pack* place, Pack& pack) const {
        return receive_word(source, place, pack.x) && receive_word(source, place + 1, pack.y);
    }

    // Where choice `i` of a source arrives, from its blocks in turn; and where its number of tokens
    // arrives.
    __device__ const Pack* choice(int source, u32 i) const {
        const u32 of_block = i / gridDim.x;
        return packet_of_block(
            source, i - of_block * gridDim.x, u32(shuffle.words_at) + 1 + of_block);
    }
    __device__ const Pack* count(int source) const {
        return packet_of_block(source, 0, u32(shuffle.words_at));
    }

    // Receives how many tokens `source` has and, if it has few and a choice `i`, this choice, at
    // `place`. False: leave.
    __device__ bool receive_choice(
        int source, u32 i, const Pack* place, u64& tokens, u64& word) const {
        const Pack* counts = count(source);
        if (i >= shuffle.few_tokens * shuffle.k) place = counts;
        Patience patience;
        for (;;) {
            const Pack first = ld_packet_sys(counts), second = ld_packet_sys(place);
            tokens = payload(first);
            word = payload(second);
            const bool wanted = is_new(first, epoch) && i < choices_of(tokens);
            if (is_new(first, epoch) && (!wanted || is_new(second, epoch))) return true;
            if (!patience.lasts(
                    shuffle.team, [&] { return awaited(source, wanted ? second : first); }))
                return false;
        }
    }

    // The number of choices that a source with so many tokens has sent.
    __device__ u32 choices_of(u64 tokens) const {
        return are_few(i64(tokens)) ? u32(tokens) * u32(shuffle.k) : 0;
    }

    // Steps are sent and received by all lanes of a warp. `part`: part_of_row.
    __device__ void send_step(int holder, const Step& step, Pack part) const {
        st_line_sys(slots.out_rows[holder] + step.row * kRowPlaces + threadIdx.x % 32, part);
    }

    // A step of the sources first, first + 1 … whose bits are in `sources`. The constructor issues
    // its loads.
    template <int kCount>
    struct Coming {
        const Pack* places[kCount];  // null: not of this source. Computed before, so that a poll is
                                     // short
        Pack packs[kCount];

        __device__ Coming(const FewTokens& few, u32 sources, int first, const Step& step) {
#pragma unroll
            for (int s = 0; s < kCount; ++s)
                places[s] = sources >> (first + s) & 1
                    ? few.slots.in_rows[first + s] + step.row * kRowPlaces + threadIdx.x % 32
                    : nullptr;
            look();
        }

        __device__ void look() {
#pragma unroll
            for (int s = 0; s < kCount; ++s)
                if (places[s] != nullptr) packs[s] = ld_line_sys(places[s]);
        }

        __device__ bool has_come(int s, u32 epoch) const {
            return places[s] == nullptr || threadIdx.x % 8 != 7 || packs[s].y == epoch;
        }
    };

    // Polls until the step has come; then `packs` are the lanes' packs. False: leave.
    template <int kCount>
    __device__ bool receive(Coming<kCount>& coming, int first) const {
        Patience patience;
        for (;;) {
            bool all = true;
#pragma unroll
            for (int s = 0; s < kCount; ++s) all &= coming.has_come(s, epoch);
            if (__all_sync(kWholeWarp, all)) break;
            if (patience.is_due() && !is_worth_it(patience, coming, first)) return false;
            coming.look();
        }
#pragma unroll
        for (int s = 0; s < kCount; ++s) coming.packs[s] = pack_of_row(coming.packs[s]);
        return true;
    }

    // All threads, after `keep`: the first block sends all ranks the number of tokens.
    __device__ void send_count(i64 tokens) const {
        if (blockIdx.x == 0 && int(threadIdx.x) < shuffle.team.size)
            send_word(int(threadIdx.x), u32(shuffle.words_at), u64(tokens));
    }

    // All threads: the last warp, which often has no steps, receives the ranks' numbers of tokens,
    // into `tokens` unless null; a barrier follows. False: leave.
    __device__ bool receive_counts(i64* tokens = nullptr) const {
        const int source = int(blockDim.x - 1 - threadIdx.x);
        if (source >= shuffle.team.size) return true;
        u64 count = 0;
        const bool ok = receive_word(source, this->count(source), count);
        if (tokens) tokens[source] = i64(count);
        return ok;
    }

  private:
    // Whether to poll on; lane 0 decides for the warp.
    template <int kCount>
    __device__ bool is_worth_it(Patience& patience, const Coming<kCount>& coming, int first) const {
        int missing = first;
#pragma unroll
        for (int s = 0; s < kCount; ++s)
            if (!__all_sync(kWholeWarp, coming.has_come(s, epoch))) missing = first + s;
        return __all_sync(
            kWholeWarp,
            threadIdx.x % 32 != 0 || patience.look(shuffle.team, awaited(missing, Pack{0, 0})));
    }

    __device__ Awaited awaited(int source, Pack stale) const {
        return Awaited{epoch, int(blockIdx.x), source, epoch, stale.x >> 32};
    }
};
