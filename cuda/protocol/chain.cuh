// Chains: a long message goes from rank to rank, piece by piece, each passed on while the next one comes.
//
// Every link carries the message once, and nobody stores for a rank but the one before it: what several ranks store for the
// same one collides in the switch. A chain ends as much later as a piece takes from rank to rank, so pieces are short.
//
// A piece takes microseconds, most of them for its fence and its signals. So there are several lanes, of a group of warps
// each, which have every kLanes-th piece and wait for no other. Pieces lie in the next rank's lease, where the memory of all
// rings serves the lanes: the rank before is alone there in this operation, and begins when the owner has entered it,
// that is, has read what was there.
//
// Two words a lane count the pieces of this operation, on top of its epoch (epoch << 32). Another operation may have them
// written by other ranks. So everything that is written there is waited for in the same operation.
#pragma once
#include "protocol/channel.cuh"

constexpr int kNobody = -1;
constexpr u64 kPiecesOfPart = 16, kShortestPiece = 8 << 10, kLongestPiece = 32 << 10;  // how many, in bytes

struct Hop {  // this rank's: who is before it in the chain, and who next
    int from, to;
};

struct Chain {
    Channel& channel;
    const u64 nbytes;  // of this block's part of the message
    const u64 lane_nbytes, piece_nbytes, pieces;
    const u64 places;  // for pieces, of a lane

    __device__ Chain(Channel& channel, u64 nbytes)
        : channel(channel), nbytes(nbytes), lane_nbytes(find_lane()), piece_nbytes(find_piece()),
          pieces((nbytes + piece_nbytes - 1) / piece_nbytes), places(lane_nbytes / piece_nbytes) {}

    // All threads; false: leave. A rank where the chain both begins and ends has two hops, of which the first takes nothing
    // and the second passes nothing on, so that they share no word. Its warps may be too few for a group each: then a piece
    // ends some rounds after it began, while others are on their way.
    // A piece is moved by move(crew, number of the hop, where it begins in the message, bytes, from, to).
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
    // In whole packs, which all places for chunks together have.
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
        const bool comes = hop.from != kNobody, goes = hop.to != kNobody;
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
