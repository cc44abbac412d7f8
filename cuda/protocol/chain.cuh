// Chains: a long message goes from rank to rank in short pieces; a rank passes on each piece while the next one comes.
//
// Every link carries the message once, and only the previous rank of the chain stores into a rank's lease: stores of several
// ranks to one rank collide in the switch. A chain ends later by the time that a piece takes from rank to rank, so pieces are
// short. For piece k of a lane a group of warps
//   1. waits for `came` from the previous rank, and for a place at the next rank (`entered` at first, then `taken`);
//   2. moves the piece into the next rank's lease, meets, and signals `taken` to the previous rank;
//   3. makes a fence and signals `came` to the next rank.
//
// Most of a piece's time is its fence and signals. So there are kLanes lanes, each with its group of warps, which have every
// kLanes-th piece and do not wait for each other. In this operation all rings' memory serves the lanes. The previous rank is
// the only writer there, and begins when the owner has entered the operation, which means that it has read what was there.
//
// `came` and `taken` count the pieces of this operation below its epoch. In another operation other ranks may write them,
// so a rank waits for all that is written to them in the same operation.
//
// Thresholds, of a piece, were measured on 4 H200 with 128 MB (docs/design_notes.md, "`Bcast` and long `Reduce` are
// chains").
#pragma once
#include "protocol/channel.cuh"

constexpr int kNoRank = -1;
constexpr u64 kPiecesOfPart = 16;  // a block's part has about so many pieces,
constexpr u64 kShortestPiece = 8 << 10, kLongestPiece = 32 << 10;  //   of so many bytes

struct Hop {  // this rank's neighbours in the chain, or kNoRank
    int from, to;
};

struct Chain {
    Channel& channel;
    const u64 nbytes;  // bytes of this block's part of the message
    const u64 lane_nbytes, piece_nbytes, pieces;
    const u64 places;  // for pieces, of a lane

    __device__ Chain(Channel& channel, u64 nbytes)
        : channel(channel), nbytes(nbytes), lane_nbytes(find_lane()), piece_nbytes(find_piece()),
          pieces((nbytes + piece_nbytes - 1) / piece_nbytes), places(lane_nbytes / piece_nbytes) {}

    // All threads. False: leave. A rank where the chain both begins and ends has two hops. The first takes nothing and the
    // second passes nothing on, so they share no word. If its warps are too few for a group each, a piece ends some rounds
    // after it began, while others are in flight.
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
    // Bytes of a lane, in whole packs: all places for chunks together, divided by the lanes.
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

    // Piece k of a lane: taken, moved, and passed on.
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
