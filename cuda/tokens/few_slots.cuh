// The slots of few tokens: where a block sends packets and lines to each rank, and where those of
// each rank's blocks arrive.
//
// Slots alternate by the epoch's parity; channel.cuh describes when one may be written. Thread r
// computes those of rank r.
#pragma once
#include "protocol/line.cuh"
#include "tokens/shuffle.cuh"

struct Slots {  // in shared memory, since computing an address takes time
    Pack* out[kMaxRanks];       // packets of this block to each rank,
    Pack* first[kMaxRanks];     // packets of each rank's first block to this rank,
    Pack* out_rows[kMaxRanks];  // lines of this block to each rank,
    Pack* in_rows[kMaxRanks];   // lines of each rank's block of this number to this rank
};

// The distance, in slots, between a rank's slots for consecutive blocks of `source`: two parities
// of those for all sources.
__device__ __forceinline__ u32 slots_between(const Shuffle& shuffle, int source) {
    return 2 * (source == shuffle.team.rank ? 1 : u32(shuffle.team.size) - 1);
}

// Thread r computes the slots of rank r for even epochs, before the epoch is read.
struct FoundSlots {
    Pack *out = nullptr, *first = nullptr, *out_rows = nullptr, *in_rows = nullptr;
    u32 odd = 0;  // distance to those of odd epochs, in slots

    __device__ void find(const Shuffle& shuffle) {
        const int rank = int(threadIdx.x), me = shuffle.team.rank;
        if (rank >= shuffle.team.size) return;
        const Team& team = shuffle.team;
        const u64 block = u64(blockIdx.x) * slots_between(shuffle, rank),
                  packets = team.slot_packets;
        const u64 places = u64(team.slot_rows) * kRowPlaces;
        odd = slots_between(shuffle, rank) / 2;
        out = at(shuffle, rank, me, team.packets_offset, shuffle.own_slots, packets) +
            block * packets;
        first = at(shuffle, me, rank, team.packets_offset, shuffle.own_slots, packets);
        out_rows = at(shuffle, rank, me, team.lines_offset, shuffle.own_rows, places) +
            block * places;
        in_rows = at(shuffle, me, rank, team.lines_offset, shuffle.own_rows, places) +
            block * places;
    }

    __device__ u64 dependency() const {
        return u64(out) ^ u64(first) ^ u64(out_rows) ^ u64(in_rows) ^ odd;
    }

  private:
    // The first block's slot, among the holder's slots of `packs` packs each from `offset` on. A
    // rank sends to itself through slots of its own, `own`, which no other rank reads.
    __device__ static Pack* at(
        const Shuffle& shuffle, int holder, int source, u64 offset, Pack* own, u64 packs) {
        if (holder == source) return own;
        const Team& team = shuffle.team;
        return reinterpret_cast<Pack*>(team.base[holder] + offset) +
            Channel::place_of(team, holder, source) * packs;
    }
};
