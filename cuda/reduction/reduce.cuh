// Common parts of Allreduce, Reduce and Reduce_scatter_block: folds of the ranks' vectors in rank order.
//
//   one-shot: every rank that needs a pack gets it from all ranks as packets and folds it. One trip.
//   two-shot: 1. each tile is cut into one shard for each rank, and every rank sends shard r to rank r (ring 0);
//             2. rank r folds what it got, and sends the result on to the ranks that need it (ring 1).
//             Each byte travels twice, for any number of ranks.
//
// Source of both forms: the symmetric-memory recipes for PyTorch.
// Where loads at once were measured: kLoadsAtOnce on 2 and 4 H200 (docs/design_notes.md, "A long copy checks the
// alignment once" and "The number of loads …"; 2026-11-22); kChunksAtOnce and kFewRanks not measured by themselves.
#pragma once
#include "protocol/chunk.cuh"
#include "elements/groups.cuh"
#include "protocol/line.cuh"
#include "protocol/packet.cuh"

// The fold of pack `i` over all ranks; the peers' packs come as packets at position 2 * i. False: leave.
template <class T, class Op>
__device__ bool fold_packets(Packets& packets, const char* message, u64 i, u64 nbytes, Pack& result) {
    const Team& team = packets.channel.team;
    const Pack own = load_pack(message, i, nbytes);  // loaded while the peers' packets are awaited
    Fold<T, Op> fold;
#pragma unroll 1
    for (int first = 0; first < team.size; first += kAtOnce) {
        Pack packs[kAtOnce];
        if (!packets.receive_each(first, u32(i) * 2, packs)) return false;
#pragma unroll
        for (int s = 0; s < kAtOnce; ++s)
            if (first + s < team.size)
                fold.add(first + s, first + s == team.rank ? own : packs[s]);
    }
    result = fold.result(team.size);
    return true;
}

constexpr int kChunksAtOnce = 4;  // ranks whose packs are loaded before the first is used
constexpr int kLoadsAtOnce = 8;   // loads over links before the first is used, of several packs if there are few ranks

// The fold of one pack over all ranks; load(rank) returns a rank's pack.
template <class T, class Op, class Load>
__device__ Pack fold_loaded(int size, Load load) {
    Fold<T, Op> fold;
#pragma unroll 1
    for (int first = 0; first < size; first += kChunksAtOnce) {
        Pack packs[kChunksAtOnce];
#pragma unroll
        for (int s = 0; s < kChunksAtOnce; ++s)
            if (first + s < size) packs[s] = load(first + s);
#pragma unroll
        for (int s = 0; s < kChunksAtOnce; ++s)
            if (first + s < size) fold.add(first + s, packs[s]);
    }
    return fold.result(size);
}

// Threads fold packs member, member + members … below `packs`, or groups of packs if elements do not divide a pack.
// load(rank, i) returns pack i of a rank, keep(i, pack) stores pack i of the result.
template <class T, class Op, class Index = u64, class Load, class Keep>
__device__ __forceinline__ void fold_shard(u32 member, u32 members, Index packs, int size, Load load, Keep keep) {
    if constexpr (kGroupPacks<T> > 1) {
        fold_groups<T, Op>(member, members, packs, size, load, keep);
    } else {
#pragma unroll 1
        for (Index i = member; i < packs; i += members)
            keep(i, fold_loaded<T, Op>(size, [&](int rank) { return load(rank, i); }));
    }
}

// Folds for at most kRanks ranks: kFolds packs of each are loaded before the first is used.
template <class T, class Op, int kRanks, int kFolds = kLoadsAtOnce / kRanks, class Index, class Load, class Keep>
__device__ __forceinline__ void fold_of_few(u32 member, u32 members, Index packs, int size, Load load, Keep keep) {
#pragma unroll 1
    for (Index i = member; i < packs; i += kFolds * members) {
        Pack loaded[kFolds][kRanks];
#pragma unroll
        for (int f = 0; f < kFolds; ++f)
#pragma unroll
            for (int rank = 0; rank < kRanks; ++rank)
                if (rank < size && i + f * members < packs) loaded[f][rank] = load(rank, i + f * members);
#pragma unroll
        for (int f = 0; f < kFolds; ++f) {
            if (i + f * members >= packs) break;
            Fold<T, Op> fold;
#pragma unroll
            for (int rank = 0; rank < kRanks; ++rank)
                if (rank < size) fold.add(rank, loaded[f][rank]);
            keep(i + f * members, fold.result(size));
        }
    }
}

constexpr int kFewRanks = 4;

// Folds with loads over links. kWhole: packs are whole (vector.cuh), and there are at most kFewRanks ranks.
template <class T, class Op, bool kWhole, class Load, class Keep>
__device__ __forceinline__ void fold_far(u32 member, u32 members, u64 packs, int size, Load load, Keep keep) {
    if constexpr (!kWhole) fold_shard<T, Op>(member, members, packs, size, load, keep);
    else if (size <= 2) fold_of_few<T, Op, 2>(member, members, packs, size, load, keep);
    else fold_of_few<T, Op, kFewRanks>(member, members, packs, size, load, keep);
}

// The receiver of a folded shard is a rank, or one of
constexpr int kToAll = -1;   // every rank,
constexpr int kToNone = -2;  // only the rank that folded it

// A Tiling cuts a block's part into tiles, and a tile into a shard for each rank: shard(tile, rank) returns this.
struct Shard {
    const char* send;
    char* recv;
    u64 nbytes;
};

// All threads, after a barrier: moves a shard's result to its place, if that is elsewhere.
__device__ inline void move_result(const Shard& shard, char* to) {
    if (shard.recv == to) return;
    move_packs(
        threadIdx.x, packs_in(shard.nbytes), blockDim.x, [&](u64 i) { return load_pack(shard.recv, i, shard.nbytes); },
        [&](u64 i, Pack pack) { store_pack(to, i, shard.nbytes, pack); });
}

// The fold of this lane's pack of a row over all ranks; the peers' packs come as that row of lines. False: leave.
template <class T, class Op>
__device__ bool fold_lines(Lines& lines, const char* message, u32 row, u64 nbytes, Pack& result) {
    const Team& team = lines.channel.team;
    const Pack own = lines.load(message, row, nbytes);  // loaded while the peers' lines are awaited
    Fold<T, Op> fold;
#pragma unroll 1
    for (int first = 0; first < team.size; first += kLinesAtOnce) {
        Pack packs[kLinesAtOnce];
        if (!lines.receive_each(first, team.size, row, packs)) return false;
#pragma unroll
        for (int s = 0; s < kLinesAtOnce; ++s)
            if (first + s < team.size) fold.add(first + s, first + s == team.rank ? own : packs[s]);
    }
    result = fold.result(team.size);
    return true;
}

// Two shots of lines: every rank folds its shard of this block's part, and sends it on at once, row by row. `crew` has a job
// for each peer. Returns true if nothing failed and data of every peer came (Channel::leave).
template <class T, class Op, class Tiling>
__device__ bool two_shot_lines(Lines& lines, const Tiling& tiling, const Crew& crew, int receiver) {
    Channel& channel = lines.channel;
    const u32 peers = channel.places();
    // The first row of results in a slot: after the contributions, if the slot has both.
    const u32 results = receiver == kToAll ? rows_in(tiling.shard_nbytes) : 0;
    const auto receives = [&](int rank) { return receiver == kToAll || receiver == rank; };
    const Shard mine = tiling.shard(0, channel.team.rank);
    const u32 member = crew.member / 32, members = crew.members / 32;
    const u64 receivers = lines.outboxes(receives);
    bool ok = channel.await_slots();
    for (u32 j = crew.first_job; ok && j < peers; j += crew.next_job) {
        const Shard shard = tiling.shard(0, channel.peer(j));
        lines.send_message(member, members, lines.outbox(channel.peer(j)), shard.send, shard.nbytes);
    }
    for (u32 row = threadIdx.x / 32; ok && row < rows_in(mine.nbytes); row += blockDim.x / 32) {
        Pack result;
        ok = fold_lines<T, Op>(lines, mine.send, row, mine.nbytes, result);
        if (ok) lines.send_to_each(receivers, results + row, result);
        if (ok && receives(channel.team.rank)) lines.store(mine.recv, row, mine.nbytes, result);
    }
    for (u32 j = crew.first_job; receives(channel.team.rank) && ok && j < peers; j += crew.next_job) {
        const Shard shard = tiling.shard(0, channel.peer(j));
        // one at a time: the peer has yet to fold the next
        for (u32 row = member; ok && row < rows_in(shard.nbytes); row += members) {
            Pack pack;
            ok = lines.receive(channel.peer(j), results + row, pack);
            if (ok) lines.store(shard.recv, row, shard.nbytes, pack);
        }
    }
    return ok && mine.nbytes > 0;
}

// A vector that all ranks fold together: this block's part of it, cut into tiles of one shard for each owner. All ranks own
// shards, or all but root of a Reduce, whose link is busy with the result. Of two ranks root owns all, since the other rank's
// contribution travels no longer than the result would (2 H200, docs/design_notes.md, "With two ranks, root reduces the
// whole vector").
struct VectorTiling {
    const char* send;
    char* recv;
    u64 nbytes, shard_nbytes;
    int size, owners, first_owner;

    __device__ VectorTiling(const ReduceArgs& args, u64 most, int spared = kToNone) : size(args.team.size) {
        const Part part(args.nbytes, gridDim.x, blockIdx.x);
        send = args.send + part.begin;
        recv = args.recv + part.begin;
        nbytes = part.nbytes;
        owners = spared == kToNone || size == 1 ? size : size - 1;
        first_owner = owners == size ? 0 : size == 2 ? spared : (spared + 1) % size;
        shard_nbytes = share_of(nbytes, owners, most);
    }
    __device__ u64 tiles() const { return (nbytes + shard_nbytes * owners - 1) / (shard_nbytes * owners); }
    __device__ int number(int rank) const { return rank < first_owner ? rank - first_owner + size : rank - first_owner; }
    __device__ bool owns(int rank) const { return number(rank) < owners; }
    __device__ Shard shard(u64 tile, int rank) const {
        const int owner = number(rank);
        const u64 begin = owner < owners ? smaller((tile * owners + owner) * shard_nbytes, nbytes) : nbytes;
        return Shard{send + begin, recv + begin, smaller(shard_nbytes, nbytes - begin)};
    }
};
