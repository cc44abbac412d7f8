// Packets: small messages that carry their own flag, in one trip and without a barrier.
//
// A packet is two 64-bit words, each with 32 bits of payload and the 32-bit epoch. A word is written and read by one
// access, so a word with this epoch has this epoch's payload: no fence and no signal. Packets need twice the bytes and
// save a wait. NCCL calls the format LL.
//
// A slot has the packets of one (channel, parity, source); channel.cuh describes when it may be written. Two packets make one
// Pack of 16 bytes.
#pragma once
#include "protocol/channel.cuh"

constexpr int kAtOnce = 8;  // ranks whose packets are loaded before the first is checked; not measured

__device__ __forceinline__ Pack make_packet(u64 payload, u32 epoch) {
    const u64 flag = u64(epoch) << 32;
    return Pack{(payload & 0xffffffffu) | flag, (payload >> 32) | flag};
}

__device__ __forceinline__ bool is_new(Pack packet, u32 epoch) {
    return u32(packet.x >> 32) == epoch && u32(packet.y >> 32) == epoch;
}

__device__ __forceinline__ u64 payload(Pack packet) { return (packet.x & 0xffffffffu) | (packet.y << 32); }

// The packet slots of a channel in this operation.
struct Packets {
    Channel& channel;
    Pack* const inbox;  // this rank's slots

    __device__ explicit Packets(Channel& channel)
        : channel(channel), inbox(channel.slots(channel.team.rank, channel.epoch & 1)) {}

    __device__ Pack* outbox(int peer) const {
        const u32 place = channel.place_of(peer, channel.team.rank);
        return channel.slots(peer, channel.epoch & 1) + place * channel.team.slot_packets;
    }

    __device__ void send_word(Pack* outbox, u32 position, u64 word) const {
        st_packet_sys(outbox + position, make_packet(word, channel.epoch));
    }

    __device__ void send(Pack* outbox, u32 position, Pack pack) const {
        send_word(outbox, position, pack.x);
        send_word(outbox, position + 1, pack.y);
    }

    __device__ const Pack* slot(int source) const {
        return inbox + channel.place_of(channel.team.rank, source) * channel.team.slot_packets;
    }

    // Returns false if the word has not come; `word` is then 0. The slot still contains a word of an earlier operation,
    // which must not be taken for a place in a window or for a count.
    __device__ bool receive_word(int source, u32 position, u64& word) {
        Patience patience;
        for (word = 0;;) {
            const Pack packet = ld_packet_sys(slot(source) + position);
            if (is_new(packet, channel.epoch)) {
                word = payload(packet);
                return true;
            }
            if (!patience.lasts(channel.team, [&] { return awaited(source, packet); })) return false;
        }
    }

    __device__ bool receive(int source, u32 position, Pack& pack) {
        Patience patience;
        for (;;) {
            const Pack first = ld_packet_sys(slot(source) + position);
            const Pack second = ld_packet_sys(slot(source) + position + 1);
            pack = Pack{payload(first), payload(second)};
            if (is_new(first, channel.epoch) && is_new(second, channel.epoch)) return true;
            const Pack& stale = is_new(first, channel.epoch) ? second : first;
            if (!patience.lasts(channel.team, [&] { return awaited(source, stale); })) return false;
        }
    }

    // One pack from each of the sources first, first + 1 … below `end` (at most kAtOnce), except this rank.
    __device__ bool receive_each(int first, u32 position, Pack (&packs)[kAtOnce], int end = kMaxRanks) {
        const auto is_source = [&](int rank) { return rank < end && channel.is_peer(rank); };
        const Pack* places[kAtOnce];  // computed before the loop, so that a poll is short
#pragma unroll
        for (int s = 0; s < kAtOnce; ++s) places[s] = is_source(first + s) ? slot(first + s) + position : nullptr;
        Pack words[kAtOnce][2];
        Patience patience;
        for (;;) {
#pragma unroll
            for (int s = 0; s < kAtOnce; ++s)
                if (places[s] != nullptr) {
                    words[s][0] = ld_packet_sys(places[s]);
                    words[s][1] = ld_packet_sys(places[s] + 1);
                }
            bool all = true;
#pragma unroll
            for (int s = 0; s < kAtOnce; ++s) all &= has_come(places[s], words[s]);
            if (all) break;
            if (!patience.is_due()) continue;
            int missing = first;
#pragma unroll
            for (int s = 0; s < kAtOnce; ++s)
                if (!has_come(places[s], words[s])) missing = first + s;
            if (!patience.look(channel.team, awaited(missing, ld_packet_sys(slot(missing) + position)))) return false;
        }
#pragma unroll
        for (int s = 0; s < kAtOnce; ++s) packs[s] = Pack{payload(words[s][0]), payload(words[s][1])};
        return true;
    }

  private:
    // Returns whether both packets have come; true if nothing is expected (no place).
    __device__ bool has_come(const Pack* place, const Pack (&both)[2]) const {
        return place == nullptr || (is_new(both[0], channel.epoch) && is_new(both[1], channel.epoch));
    }

    __device__ Awaited awaited(int source, Pack stale) const {
        return Awaited{channel.epoch, channel.index, source, channel.epoch, stale.x >> 32};
    }
};
