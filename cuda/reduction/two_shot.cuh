// Two shots as chunks: shards of each tile come through ring 0, are folded, and go on through ring 1.
//
// Some warps fold, the others move, with a group for each peer and way, tile after tile (chunk.cuh). Of tile t
//   1. groups scatter this rank's contributions to the other ranks' shards;
//   2. the folding warps wait for all contributions to this rank's shard and for places for the result, fold, meet, signal that
//      the contributions were read, make a fence and signal the result;
//   3. groups collect the results of the other ranks' shards.
// Where results go to no other rank, ring 1 is free, and between two ranks contributions go through both rings in turn
// (exchange_chunks.cuh).
// Launch: one block for each channel in use, kMaxThreads threads.
#pragma once
#include "exchange/exchange_chunks.cuh"
#include "reduction/reduce.cuh"

enum Owners : int { kAllRanks, kAllButRoot, kRootAlone };  // the ranks that fold shards, as in the tiling

// Folds whole packs of at most kRanks ranks: this rank's own, and those in its rings, at equal distances from that of the
// next rank. Stores the result `here`, unless null, and in the rings of its receivers, `results` bytes from the start of
// a lease. The number of loads in flight bounds a fold: kLoadsAtOnce, or fewer where an element takes more registers (4
// H200, docs/design_notes.md, "The number of loads in flight limits a fold of chunks").
template <class T, class Op, int kRanks>
__device__ __forceinline__ void fold_contributions(u32 member, u32 members, u32 packs, const Team& team, const char* own,
                                                   const Pack* next, u32 pair_nbytes, char* here, int receiver, u64 results) {
    constexpr int kFolds = sizeof(T) == 1 || sizeof(T) > 8 ? 1 : kLoadsAtOnce / kRanks;
    const int me = team.rank, size = team.size;  // copies: with a Channel the compiler computes places anew for each load
    const auto load = [=](int rank, u32 i) {
        const int place = rank > me ? rank - me - 1 : rank - me - 1 + size;
        const char* from = rank == me ? own : reinterpret_cast<const char*>(next) + u64(place) * pair_nbytes;
        return get_pack(reinterpret_cast<const Pack*>(from) + i);
    };
    Pack* to[kRanks - 1];  // this rank has the last place but one at the next rank, and so on
#pragma unroll
    for (int j = 0; j < kRanks - 1; ++j) {
        const int peer = me + 1 + j < size ? me + 1 + j : me + 1 + j - size;
        const bool receives = j < size - 1 && (receiver == kToAll || receiver == peer);
        to[j] = receives ? reinterpret_cast<Pack*>(team.base[peer] + results + u64(size - 2 - j) * pair_nbytes) : nullptr;
    }
    const auto keep = [&](u32 i, Pack pack) {
        if (here != nullptr) reinterpret_cast<Pack*>(here)[i] = pack;
#pragma unroll
        for (int j = 0; j < kRanks - 1; ++j)
            if (to[j] != nullptr) put_pack(to[j] + i, pack);
    };
    fold_of_few<T, Op, kRanks, kFolds>(member, members, packs, size, load, keep);
}

// Folds all tiles of more than two ranks (TwoShot::fold). Out of line and with copies of its arguments, so that the fold
// has all registers.
template <class T, class Op, class Tiling, Owners kOwners>
__device__ __noinline__ bool fold_tiles(
    Channel channel, u32 chunk_nbytes, Tiling tiling, int receiver, u32 lanes, char* to, Crew crew);

// `to`: where this rank's folded shards belong if the tiling has another place: the beginning of the vector, which rank 0
// must have taken before, tile by tile. Null otherwise.
template <class T, class Op, class Tiling, Owners kOwners = kAllRanks>
struct TwoShot {
    Channel& channel;
    Chunks chunks;
    const Tiling tiling;
    const int receiver;  // a rank, kToAll or kToNone
    const u32 lanes;     // rings through which contributions go in turn (exchange_chunks.cuh)
    char* const to;

    __device__ int me() const { return channel.team.rank; }
    __device__ int peers() const { return channel.team.size - 1; }
    __device__ bool receives(int rank) const { return receiver == kToAll || receiver == rank; }
    __device__ bool owns(int rank) const {
        if constexpr (kOwners == kAllRanks) return true;
        else return tiling.owns(rank);
    }

    // All threads. False: leave. Some warps fold; the others scatter and collect, with a group for each peer and way.
    // With few warps one group does all: tile t in rounds t to t + 2. A rank without shards only scatters and collects, a
    // rank that owns all shards only folds.
    __device__ bool run() {
        const auto fold_tile = [&](const Crew& crew, u32 tile) { return fold<false>(crew, tile); };
        if constexpr (kGroupPacks<T> > 1) {
            return run_once(fold_tile);
        } else {
            const u32 warps = blockDim.x / 32, folders = find_folders(), folds = fold_jobs();
            bool ok = true;
            if (owns(me()) && folders == 0) ok = work(Crew(folds), 0, transfers() + folds, fold_tile);
            else if (threadIdx.x / 32 < folders) ok = fold_all(Crew(folds, 0, folders, 1), fold_tile);
            else ok = work(Crew(transfers(), folders, warps, 1 + folds), folds, transfers(), fold_tile);
            return channel.everyone(ok);
        }
    }

    // The same with one call for all groups, where the code of a fold is too long to be inlined three times.
    template <class FoldTile>
    __device__ bool run_once(FoldTile fold_tile) {
        const u32 warps = blockDim.x / 32, folders = find_folders(), folds = fold_jobs();
        const bool all = owns(me()) && folders == 0, is_folder = threadIdx.x / 32 < folders;
        const Crew crew = all ? Crew(folds) : is_folder ? Crew(folds, 0, folders, 1) : Crew(transfers(), folders, warps, 1 + folds);
        const u32 jobs = all ? transfers() + folds : is_folder ? folds : transfers();
        return channel.everyone(work(crew, all || is_folder ? 0 : folds, jobs, fold_tile));
    }

    __device__ u32 ways() const { return receives(me()) ? 2 : 1; }
    __device__ u32 transfers() const { return (ways() - 1 + lanes) * u32(peers()); }
    __device__ u32 find_folders() const {
        const u32 warps = blockDim.x / 32, some = kOwners == kRootAlone ? warps : warps / (Op::kCostly ? 2 : 1 + ways());
        return owns(me()) ? some : 0;
    }

    template <class FoldTile>
    __device__ bool fold_all(const Crew& crew, FoldTile fold_tile) {
        if constexpr (kOwners != kRootAlone)
            if (peers() > 1) return fold_tiles<T, Op, Tiling, kOwners>(channel, chunks.nbytes, tiling, receiver, lanes, to, crew);
        return work(crew, 0, fold_jobs(), fold_tile);
    }

    // A rank that owns all shards has a group for each lane.
    __device__ u32 fold_jobs() const { return kOwners == kRootAlone ? lanes : 1; }

    // Jobs are: folds; a scatter for each lane and peer; a collect for each peer. This does `jobs` of them from `first` on. A
    // round has a tile for each lane.
    template <class FoldTile>
    __device__ bool work(const Crew& crew, u32 first, u32 jobs, FoldTile fold_tile) {
        const u32 tiles = u32(tiling.tiles()), folds = fold_jobs();
        bool ok = true;
        for (u32 tile = 0; ok && tile < tiles + 2 * lanes; tile += lanes)
            for (u32 i = crew.first_job; ok && i < jobs; i += crew.next_job) {
                const u32 job = i + first, move = job - folds, lane = move >= u32(peers()) && lanes > 1 ? 1 : 0;
                const int peer = job < folds ? me() : channel.peer(int(move) % peers());
                if (job < folds)
                    for (u32 each = job; ok && each < lanes; each += folds)
                        ok = tile - lanes + each >= tiles || fold_tile(crew, tile - lanes + each);
                else if (move < lanes * u32(peers())) ok = tile + lane >= tiles || scatter(crew, tile + lane, peer);
                else ok = tile < 2 || collect(crew, tile - 2, peer);
            }
        return ok;
    }

    // The ring of contributions to a tile, and the chunk's number there.
    __device__ int ring_of(u32 tile) const { return lanes > 1 ? int(tile % 2) : 0; }
    __device__ u32 number_of(u32 tile) const { return lanes > 1 ? tile / 2 : tile; }

    __device__ bool scatter(const Crew& crew, u32 tile, int peer) {
        if (!owns(peer)) return true;
        const Shard shard = tiling.shard(tile, peer);
        return chunks.store(crew, ring_of(tile), peer, number_of(tile), [&](Pack* place) {
            copy_packs<true, u32>(crew.member, crew.members, shard.send, place, shard.nbytes);
        });
    }

    __device__ bool collect(const Crew& crew, u32 tile, int peer) {
        if (!owns(peer)) return true;
        const Shard shard = tiling.shard(tile, peer);
        return chunks.take(crew, 1, peer, tile, [&](const Pack* place) {
            copy_packs<false, u32>(crew.member, crew.members, place, shard.recv, shard.nbytes);
        });
    }

    // Folds this rank's shard: waits for all contributions, and for places for the result. False: leave.
    template <bool kManyRegisters>
    __device__ bool fold(const Crew& crew, u32 tile) {
        const int peer = int(crew.member), ring = ring_of(tile);
        const u32 number = number_of(tile);
        bool ready = true;
        if (channel.is_peer(peer)) {
            ready = chunks.wait_for_chunk(ring, peer, number) && (!receives(peer) || chunks.wait_for_place(1, peer, tile));
            if (to != nullptr && peer == 0) ready = ready && chunks.wait_for_taken(ring, peer, number);
        }
        if (!crew.everyone(ready)) return false;
        const Shard shard = tiling.shard(tile, me());
        char* kept = to == nullptr ? shard.recv : to + (shard.recv - tiling.shard(0, me()).recv);
        if (!fold_whole<kManyRegisters>(crew, tile, shard, kept)) fold_packs(crew, tile, shard, kept);
        crew.everyone(true);
        if (!channel.is_peer(peer)) return true;
        chunks.signal_read(ring, peer, number);
        if (!receives(peer)) return true;
        fence_sys();
        chunks.signal_stored(1, peer, tile);
        return true;
    }

    // Folds a shard of whole, aligned packs of a few ranks. False: it is no such shard, or elements need groups of packs.
    template <bool kManyRegisters>
    __device__ bool fold_whole(const Crew& crew, u32 tile, const Shard& shard, char* kept) {
        if constexpr (kGroupPacks<T> == 1) {
            const int size = channel.team.size;
            if ((u64(shard.send) | u64(kept) | shard.nbytes) % kPackNbytes != 0) return false;
            if constexpr (kManyRegisters) {
                if (size <= 4) return fold_few<4>(crew, tile, shard, kept);
                if (size <= 8) return fold_few<8>(crew, tile, shard, kept);
            } else {
                if (size == 2) return fold_pair(crew, tile, shard, kept);
            }
        }
        return false;
    }

    // Four packs of each, not two, are worth what is spilled for them (docs/design_notes.md, "The number of
    // loads").
    __device__ bool fold_pair(const Crew& crew, u32 tile, const Shard& shard, char* kept) {
        constexpr int kFolds = sizeof(T) == 1 || sizeof(T) > 8 ? 1 : kLoadsAtOnce / 2;  // bytes and pairs take more registers
        const int other = channel.peer(0);
        const Pack* mine = reinterpret_cast<const Pack*>(shard.send);
        const Pack* theirs = chunks.place(ring_of(tile), me(), other, number_of(tile));
        const Pack *first = other > 0 ? mine : theirs, *second = other > 0 ? theirs : mine;
        Pack* here = receiver == kToNone || receives(me()) ? reinterpret_cast<Pack*>(kept) : nullptr;
        Pack* there = receives(other) ? chunks.place(1, other, me(), tile) : nullptr;
        const auto load = [&](int rank, u32 i) { return get_pack((rank == 0 ? first : second) + i); };
        const auto keep = [&](u32 i, Pack pack) {
            if (here != nullptr) here[i] = pack;
            if (there != nullptr) put_pack(there + i, pack);
        };
        fold_of_few<T, Op, 2, kFolds>(crew.member, crew.members, u32(shard.nbytes / kPackNbytes), 2, load, keep);
        return true;
    }

    template <int kRanks>
    __device__ bool fold_few(const Crew& crew, u32 tile, const Shard& shard, char* kept) {
        const Pack* next = chunks.place(ring_of(tile), me(), channel.peer(0), number_of(tile));
        const u64 results = u64(chunks.place(1, me(), channel.peer(0), tile)) - u64(channel.team.base[me()]);
        fold_contributions<T, Op, kRanks>(crew.member, crew.members, u32(shard.nbytes / kPackNbytes), channel.team, shard.send, next,
                                          chunks.pair_nbytes(), receiver == kToNone || receives(me()) ? kept : nullptr, receiver, results);
        return true;
    }

    __device__ void fold_packs(const Crew& crew, u32 tile, const Shard& shard, char* kept) {
        const auto load = [&](int rank, u64 i) { return contribution(tile, shard, rank, i); };
        fold_shard<T, Op>(crew.member, crew.members, u32(packs_in(shard.nbytes)), channel.team.size, load, [&](u32 i, Pack pack) {
            if (receiver == kToNone || receives(me())) store_pack(kept, i, shard.nbytes, pack);
            send_on(tile, i, pack);
        });
    }

    // Stores pack `i` of the result in the rings of its receivers.
    __device__ void send_on(u32 tile, u32 i, Pack pack) {
#pragma unroll 1
        for (int j = 0; receiver != kToNone && j < peers(); ++j)
            if (receives(channel.peer(j))) put_pack(chunks.place(1, channel.peer(j), me(), tile) + i, pack);
    }

    // A rank's contribution to pack `i` of this rank's shard.
    __device__ Pack contribution(u32 tile, const Shard& shard, int rank, u64 i) const {
        if (rank == me()) return load_pack(shard.send, i, shard.nbytes);
        return get_pack(chunks.place(ring_of(tile), me(), rank, number_of(tile)) + i);
    }
};

template <class T, class Op, class Tiling, Owners kOwners>
__device__ __noinline__ bool fold_tiles(
    Channel channel, u32 chunk_nbytes, Tiling tiling, int receiver, u32 lanes, char* to, Crew crew) {
    TwoShot<T, Op, Tiling, kOwners> shots{channel, Chunks(channel, Chunks::Length{chunk_nbytes}), tiling, receiver, lanes, to};
    const auto fold_tile = [&](const Crew& crew, u32 tile) { return shots.template fold<true>(crew, tile); };
    return shots.work(crew, 0, shots.fold_jobs(), fold_tile);
}
