// Chains: a long message goes from rank to rank in short pieces; a rank forwards each piece while the next one arrives.
//
// Every link carries the message once. Only the previous rank of the chain stores into a rank's lease, because stores
// of several ranks to one rank collide in the switch. The last rank ends later by the time of a piece for each rank, so
// pieces are short. For piece k of a lane a group of warps
//   1. waits for `came` from the previous rank, and for a place at the next rank (`entered` at first, then `taken`);
//   2. moves the piece into the next rank's lease, meets, and signals `taken` to the previous rank;
//   3. makes a fence and signals `came` to the next rank.
//
// Most of a piece's time is its fence and signals. So there are kLanes lanes; each has a group of warps that moves
// every kLanes-th piece, and waits for no other group. The memory of all rings belongs to the lanes here. Its only
// writer is the previous rank, which begins when the owner has entered the operation, and so has read the old contents.
//
// `came` and `taken` have the epoch, and below it count the pieces of this operation. In another operation other ranks
// may write them, so a rank waits in this operation for all that is written to them.
//
// Thresholds, of a piece, were measured on 4 H200 with 128 MB (docs/design_notes.md, "`Bcast` and long `Reduce` are
// chains").
#pragma once
#include "protocol/channel.cuh"

constexpr int kNoRank = -1;
constexpr u64 kPiecesOfPart = 16;  // about the number of pieces of a block's part, …
constexpr u64 kShortestPiece = 8 << 10, kLongestPiece = 32 << 10;  // … with these limits in bytes

struct Hop {  // this rank's neighbours in the chain, or kNoRank
    int from, to;
};

struct Chain {
    Channel& channel;
    const u64 nbytes;  // bytes of this block's part of the message
    const u64 lane_nbytes, piece_nbytes, pieces;
    const u64 places;  // places for pieces in a lane

    __device__ Chain(Channel& channel, u64 nbytes)
        : channel(channel), nbytes(nbytes), lane_nbytes(find_lane()), piece_nbytes(find_piece()),
          pieces((nbytes + piece_nbytes - 1) / piece_nbytes), places(lane_nbytes / piece_nbytes) {}

    // All threads. False: leave. A rank where the chain both begins and ends has two hops. The first hop takes nothing
    // and the second forwards nothing, so they share no word. If there are too few warps for one group each, a piece
    // ends some rounds after it began, while others are in flight.
    // move(crew, number of the hop, begin in the message, nbytes, from, to) moves a piece.
    template <class Move>
    __device__ bool run(const Hop* hops, u32 count, Move move) {
        const u32 jobs = kLanes * count, lag = u32(channel.team.size - 1);
        const Crew crew(jobs);
        const u64 rounds = (pieces + kLanes - 1) / kLanes + (count - 1) * lag;
        bool ok = true;
        for (u64 round = 0; ok && round < rounds; ++round)
            for (u32 job = crew.first_job; ok && job < jobs; job += crew.next_job) {
                const u32 number = job / kLanes, lane = job % kLanes, behind = number * lag;
                const auto move_piece = [&](u64 begin, u64 piece, const Pack* from, Pack* to) {
                    move(crew, number, begin, piece, from, to);
                };
                ok = round < behind || pass(crew, hops[number], lane, round - behind, move_piece);
            }
        return channel.everyone(ok);
    }

  private:
    // Bytes of a lane, in whole packs: the memory of all places for chunks, divided by the number of lanes.
    __device__ u64 find_lane() const {
        const u64 rings = u64(channel.places()) * kRings * kDepth * channel.team.chunk_nbytes;
        return rings / kLanes / kPackNbytes * kPackNbytes;
    }

    __device__ u64 find_piece() const {
        const u64 wanted = nbytes / kPiecesOfPart < kShortestPiece ? kShortestPiece : smaller(nbytes / kPiecesOfPart, kLongestPiece);
        const u64 most = lane_nbytes / 2 < kPackNbytes ? lane_nbytes : lane_nbytes / 2;
        return smaller(wanted, most) / kPackNbytes * kPackNbytes;
    }

    // Where piece k of a lane lies in `holder`'s lease.
    __device__ Pack* place(int holder, u32 lane, u64 k) const {
        const Team& team = channel.team;
        const u64 rings = u64(channel.index) * channel.places() * kRings * kDepth * team.chunk_nbytes;
        return reinterpret_cast<Pack*>(
            team.base[holder] + team.rings_offset + rings + lane * lane_nbytes + u32(k) % u32(places) * piece_nbytes);
    }

    // Takes, moves and forwards piece k of a lane.
    template <class Move>
    __device__ bool pass(const Crew& crew, const Hop& hop, u32 lane, u64 k, Move move) {
        const u64 number = k * kLanes + lane, begin = number * piece_nbytes;
        if (number >= pieces) return true;
        const bool comes = hop.from != kNoRank, goes = hop.to != kNoRank;
        bool ready = true;
        if (crew.member == 0) ready = (!comes || wait_for_piece(hop.from, lane, k)) && (!goes || wait_for_place(hop.to, lane, k));
        if (!crew.everyone(ready)) return false;
        const Pack* from = comes ? place(channel.team.rank, lane, k) : nullptr;
        move(begin, smaller(piece_nbytes, nbytes - begin), from, goes ? place(hop.to, lane, k) : nullptr);
        crew.everyone(true);
        if (crew.member != 0) return true;
        const bool is_awaited = number + places * kLanes < pieces;
        if (comes && is_awaited) st_after_loads_sys(&channel.theirs(hop.from)->taken[lane], channel.mark(k + 1));
        if (!goes) return true;
        fence_sys();
        st_relaxed_sys(&channel.theirs(hop.to)->came[lane], channel.mark(k + 1));
        return true;
    }

    __device__ bool wait_for_piece(int from, u32 lane, u64 k) {
        return channel.wait_for_count(&channel.mine->came[lane], from, k + 1);
    }

    __device__ bool wait_for_place(int to, u32 lane, u64 k) {
        if (k < places) return channel.wait_for_entered(to, channel.epoch);
        return channel.wait_for_count(&channel.mine->taken[lane], to, k - places + 1);
    }
};
