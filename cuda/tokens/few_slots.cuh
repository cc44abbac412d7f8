// Where the packets and lines of few tokens lie: what a block sends to each rank, and what a rank has from each one's blocks.
#pragma once
#include "protocol/line.cuh"
#include "tokens/shuffle.cuh"

struct Slots {  // in shared memory, since finding one takes its time
    Pack* out[kMaxRanks];       // packets of this block to each rank,
    Pack* first[kMaxRanks];     // of each one's first block to this rank,
    Pack* out_rows[kMaxRanks];  // lines of this block to each rank,
    Pack* in_rows[kMaxRanks];   // and of the same block of each
};

// A rank's slots for blocks of `source` that follow each other: so many lie between them, two parities of those for all sources.
__device__ __forceinline__ u32 slots_between(const Shuffle& shuffle, int source) {
    return 2 * (source == shuffle.team.rank ? 1 : u32(shuffle.team.size) - 1);
}

// Thread r finds those of rank r, in operations of even epochs, before it knows the epoch.
struct FoundSlots {
    Pack *out = nullptr, *first = nullptr, *out_rows = nullptr, *in_rows = nullptr;
    u32 odd = 0;  // slots from there to those of odd epochs

    __device__ void find(const Shuffle& shuffle) {
        const int rank = int(threadIdx.x), me = shuffle.team.rank;
        if (rank >= shuffle.team.size) return;
        const Team& team = shuffle.team;
        const u64 block = u64(blockIdx.x) * slots_between(shuffle, rank), packets = team.slot_packets;
        const u64 places = u64(team.slot_rows) * kRowPlaces;
        odd = slots_between(shuffle, rank) / 2;
        out = at(shuffle, rank, me, team.packets_offset, shuffle.own_slots, packets) + block * packets;
        first = at(shuffle, me, rank, team.packets_offset, shuffle.own_slots, packets);
        out_rows = at(shuffle, rank, me, team.lines_offset, shuffle.own_rows, places) + block * places;
        in_rows = at(shuffle, me, rank, team.lines_offset, shuffle.own_rows, places) + block * places;
    }

    __device__ u64 known() const { return u64(out) ^ u64(first) ^ u64(out_rows) ^ u64(in_rows) ^ odd; }

  private:
    // The first block's, among the holder's slots of so many packs each from `offset` on. A rank has `own` ones for what it sends
    // to itself, too, which no other ever sees.
    __device__ static Pack* at(const Shuffle& shuffle, int holder, int source, u64 offset, Pack* own, u64 packs) {
        if (holder == source) return own;
        const Team& team = shuffle.team;
        return reinterpret_cast<Pack*>(team.base[holder] + offset) + Channel::place_of(team, holder, source) * packs;
    }
};
