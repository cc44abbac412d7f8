// What Allreduce, Reduce and Reduce_scatter_block have in common: fold the ranks' vectors in rank order.
//
//   one-shot: every rank that needs a pack gets it from all ranks as packets and folds it. One trip.
//   two-shot: each tile is cut into one shard a rank; every rank sends shard r to rank r (ring 0), r folds
//             what it got and sends the result on (ring 1) to those who need it. Each byte travels twice,
//             however many ranks there are.
#pragma once
#include "chunk.cuh"
#include "groups.cuh"
#include "packet.cuh"

// Pack `i` of `message` folded over all ranks; the peers' come as the packets of position 2 * i.
template <class T, class Op>
__device__ bool fold_packets(Packets& packets, const char* message, u64 i, u64 nbytes, Pack& result) {
    const Team& team = packets.channel.team;
    const Pack own = load_pack(message, i, nbytes);  // on its way while the peers' are awaited
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
constexpr int kLoadsAtOnce = 8;   // where loads come over links, of some packs: those of one of few ranks do not fill a link

// One pack folded over all ranks; `load(rank)` gives that of a rank.
template <class T, class Op, class Load>
__device__ Pack fold_loaded(int size, Load load) {
    Fold<T, Op> fold;
#pragma unroll 1
    for (int first = 0; first < size; first += kChunksAtOnce) {
        Pack packs[kChunksAtOnce];
#pragma unroll
        for (int s = 0; s < kChunksAtOnce; ++s)  // all loads are on their way before the first is used
            if (first + s < size) packs[s] = load(first + s);
#pragma unroll
        for (int s = 0; s < kChunksAtOnce; ++s)
            if (first + s < size) fold.add(first + s, packs[s]);
    }
    return fold.result(size);
}

// Threads fold packs member, member + members … below `packs`; of elements that do not divide a pack, groups of packs. Pack i
// of a rank is load(rank, i), of the result keep(i, pack).
template <class T, class Op, class Load, class Keep>
__device__ __forceinline__ void fold_shard(u32 member, u32 members, u64 packs, int size, Load load, Keep keep) {
    if constexpr (kGroupPacks<T> > 1) {
        fold_groups<T, Op>(member, members, packs, size, load, keep);
    } else {
#pragma unroll 1
        for (u64 i = member; i < packs; i += members)
            keep(i, fold_loaded<T, Op>(size, [&](int rank) { return load(rank, i); }));
    }
}

// The same of at most kRanks ranks: kLoadsAtOnce loads of a thread are on their way before the first is used.
template <class T, class Op, int kRanks, class Load, class Keep>
__device__ __forceinline__ void fold_of_few(u32 member, u32 members, u64 packs, int size, Load load, Keep keep) {
    constexpr int kFolds = kLoadsAtOnce / kRanks;
#pragma unroll 1
    for (u64 i = member; i < packs; i += kFolds * members) {
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

// The same where loads come over links: of whole packs (vector.cuh) and at most kFewRanks ranks, if kWhole.
template <class T, class Op, bool kWhole, class Load, class Keep>
__device__ __forceinline__ void fold_far(u32 member, u32 members, u64 packs, int size, Load load, Keep keep) {
    if constexpr (!kWhole) fold_shard<T, Op>(member, members, packs, size, load, keep);
    else if (size <= 2) fold_of_few<T, Op, 2>(member, members, packs, size, load, keep);
    else fold_of_few<T, Op, kFewRanks>(member, members, packs, size, load, keep);
}

constexpr int kToAll = -1;   // who gets a folded shard: every rank,
constexpr int kToNone = -2;  // only the rank that folded it, or the rank given

// `Tiling` says what lies where: shard(tile, rank) -> {address in sendbuf, address in recvbuf, nbytes}.
struct Shard {
    const char* send;
    char* recv;
    u64 nbytes;
};

// All threads, after a barrier: a shard's result goes where it belongs, if it is not there.
__device__ inline void move_result(const Shard& shard, char* to) {
    if (shard.recv == to) return;
    move_packs(
        threadIdx.x, packs_in(shard.nbytes), blockDim.x, [&](u64 i) { return load_pack(shard.recv, i, shard.nbytes); },
        [&](u64 i, Pack pack) { store_pack(to, i, shard.nbytes, pack); });
}

enum Owners : int { kEveryone, kAllButRoot, kRootAlone };  // who folds shards, as the tiling has it

template <class T, class Op, class Tiling, Owners kOwners = kEveryone>
struct TwoShot {
    Channel& channel;
    Chunks chunks;
    const Tiling tiling;
    const int receiver;  // a rank, kToAll or kToNone

    __device__ int me() const { return channel.team.rank; }
    __device__ int peers() const { return channel.team.size - 1; }
    __device__ bool receives(int rank) const { return receiver == kToAll || receiver == rank; }
    __device__ bool owns(int rank) const {
        if constexpr (kOwners == kEveryone) return true;
        else return tiling.owns(rank);
    }

    // Some of the warps fold; the others scatter and collect, a group for each peer and way. With few warps one group does
    // all: tile t in rounds t to t + 2. A rank without shards only scatters and collects, one that has all only folds.
    __device__ bool run() {
        const auto fold_tile = [&](const Crew& crew, u64 tile) { return fold(crew, tile); };
        const u32 ways = receives(me()) ? 2 : 1, transfers = ways * u32(peers());
        const u32 warps = blockDim.x / 32, some = kOwners == kRootAlone ? warps : warps / (Op::kCostly ? 2 : 1 + ways);
        const u32 folders = owns(me()) ? some : 0;
        const bool all = owns(me()) && (folders == 0 || folders == warps), folds = threadIdx.x / 32 < folders;
        bool ok = true;
        if constexpr (kGroupPacks<T> > 1) {  // too much code to have it three times
            const Crew crew = all ? Crew(1) : folds ? Crew(1, 0, folders, 1) : Crew(transfers, folders, warps, 2);
            ok = work(crew, all || folds ? 0 : 1, all ? transfers + 1 : folds ? 1 : transfers, fold_tile);
        } else if (all) {
            ok = work(Crew(1), 0, transfers + 1, fold_tile);
        } else if (folds) {
            ok = work(Crew(1, 0, folders, 1), 0, 1, fold_tile);
        } else {
            ok = work(Crew(transfers, folders, warps, 2), 1, transfers, fold_tile);
        }
        return channel.everyone(ok);
    }

    // Jobs: 0 folds, then one for each peer scatters, then one for each collects; here `jobs` of them from `first` on.
    template <class FoldTile>
    __device__ bool work(const Crew& crew, u32 first, u32 jobs, FoldTile fold_tile) {
        const u64 tiles = tiling.tiles();
        bool ok = true;
        for (u64 round = 0; ok && round < tiles + 2; ++round)
            for (u32 i = crew.first_job; ok && i < jobs; i += crew.next_job) {
                const u32 job = i + first;
                const int peer = peers() > 0 ? channel.peer(int(job + peers() - 1) % peers()) : me();
                if (job == 0) ok = round < 1 || round - 1 >= tiles || fold_tile(crew, round - 1);
                else if (job <= u32(peers())) ok = round >= tiles || scatter(crew, round, peer);
                else ok = round < 2 || collect(crew, round - 2, peer);
            }
        return ok;
    }

    __device__ bool scatter(const Crew& crew, u64 tile, int peer) {
        if (!owns(peer)) return true;
        const Shard shard = tiling.shard(tile, peer);
        return chunks.store(crew, 0, peer, tile, shard.nbytes, [&](u64 i) { return load_pack(shard.send, i, shard.nbytes); });
    }

    __device__ bool collect(const Crew& crew, u64 tile, int peer) {
        if (!owns(peer)) return true;
        const Shard shard = tiling.shard(tile, peer);
        return chunks.take(
            crew, 1, peer, tile, shard.nbytes, [&](u64 i, Pack pack) { store_pack(shard.recv, i, shard.nbytes, pack); });
    }

    // This rank's shard: waits for what all ranks contribute, and for places for the result.
    __device__ bool fold(const Crew& crew, u64 tile) {
        const int peer = int(crew.member);
        const bool ready = !channel.is_peer(peer) ||
                           (chunks.wait_for_chunk(0, peer, tile) && (!receives(peer) || chunks.wait_for_place(1, peer, tile)));
        if (!crew.everyone(ready)) return false;
        const Shard shard = tiling.shard(tile, me());
        const auto load = [&](int rank, u64 i) { return contribution(tile, shard, rank, i); };
        fold_shard<T, Op>(crew.member, crew.members, packs_in(shard.nbytes), channel.team.size, load, [&](u64 i, Pack pack) {
            if (receiver == kToNone || receives(me())) store_pack(shard.recv, i, shard.nbytes, pack);
#pragma unroll 1
            for (int j = 0; j < peers(); ++j)
                if (receives(channel.peer(j))) put_pack(chunks.place(1, channel.peer(j), me(), tile) + i, pack);
        });
        crew.everyone(true);
        if (!channel.is_peer(peer)) return true;
        chunks.signal_read(0, peer, tile);
        if (!receives(peer)) return true;
        fence_sys();
        chunks.signal_stored(1, peer, tile);
        return true;
    }

    // What a rank contributes to pack `i` of this rank's shard.
    __device__ Pack contribution(u64 tile, const Shard& shard, int rank, u64 i) const {
        return rank == me() ? load_pack(shard.send, i, shard.nbytes) : get_pack(chunks.place(0, me(), rank, tile) + i);
    }
};

// Two shots of packets: every rank folds its shard of this block's part, and sends it on at once, pack by pack. True if it
// went well and every peer has been heard.
template <class T, class Op, class Tiling>
__device__ bool two_shot_packets(Packets& packets, const Tiling& tiling, int receiver) {
    Channel& channel = packets.channel;
    const u32 peers = u32(channel.team.size - 1), results = u32(packs_in(tiling.shard_nbytes)) * 2;  // after contributions
    const auto receives = [&](int rank) { return receiver == kToAll || receiver == rank; };
    const Shard mine = tiling.shard(0, channel.team.rank);
    const Crew crew(peers);
    bool ok = packets.await_free();
    for (u32 j = crew.first_job; ok && j < peers; j += crew.next_job) {
        const Shard shard = tiling.shard(0, channel.peer(j));
        for (u64 i = crew.member; i < packs_in(shard.nbytes); i += crew.members)
            packets.send(packets.outbox(channel.peer(j)), u32(i) * 2, load_pack(shard.send, i, shard.nbytes));
    }
    for (u64 i = threadIdx.x; ok && i < packs_in(mine.nbytes); i += blockDim.x) {
        Pack result;
        ok = fold_packets<T, Op>(packets, mine.send, i, mine.nbytes, result);
        for (u32 j = 0; ok && j < peers; ++j)
            if (receives(channel.peer(j))) packets.send(packets.outbox(channel.peer(j)), results + u32(i) * 2, result);
        if (ok && receives(channel.team.rank)) store_pack(mine.recv, i, mine.nbytes, result);
    }
    for (u32 j = crew.first_job; receives(channel.team.rank) && j < peers; j += crew.next_job) {
        const Shard shard = tiling.shard(0, channel.peer(j));
        for (u64 i = crew.member; ok && i < packs_in(shard.nbytes); i += crew.members) {
            Pack pack;
            ok = packets.receive(channel.peer(j), results + u32(i) * 2, pack);
            if (ok) store_pack(shard.recv, i, shard.nbytes, pack);
        }
    }
    return ok && mine.nbytes > 0;
}

// A vector that all ranks fold together: this block's part of it, cut into tiles of one shard for each owner. All ranks own
// shards, or all but one: the root of Reduce, whose link has enough to do with the result. Of two ranks it is root that owns
// all, for what the other one contributes travels no longer than the result would.
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
