// Two shots as chunks: shards of each tile come through ring 0, are folded, and go on through ring 1.
//
// Some warps fold, the others move, a group for each peer and way, tile after tile (chunk.cuh). Where results go nowhere
// ring 1 has no use, and between two ranks contributions go through both rings in turn (exchange_chunks.cuh).
#pragma once
#include "exchange_chunks.cuh"
#include "reduce.cuh"

enum Owners : int { kEveryone, kAllButRoot, kRootAlone };  // who folds shards, as the tiling has it

// `to`: where this rank's folded shards belong, if not where the tiling has them: at the beginning of the vector, which
// rank 0 has to have taken, tile by tile.
template <class T, class Op, class Tiling, Owners kOwners = kEveryone>
struct TwoShot {
    Channel& channel;
    Chunks chunks;
    const Tiling tiling;
    const int receiver;  // a rank, kToAll or kToNone
    const u32 lanes;     // rings that contributions go through in turn (exchange_chunks.cuh)
    char* const to;

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
        const auto fold_tile = [&](const Crew& crew, u32 tile) { return fold(crew, tile); };
        const u32 ways = receives(me()) ? 2 : 1, transfers = (ways - 1 + lanes) * u32(peers());
        const u32 warps = blockDim.x / 32, some = kOwners == kRootAlone ? warps : warps / (Op::kCostly ? 2 : 1 + ways);
        const u32 folders = owns(me()) ? some : 0, folds = fold_jobs();
        const bool all = owns(me()) && (folders == 0 || folders == warps), is_folder = threadIdx.x / 32 < folders;
        bool ok = true;
        if constexpr (kGroupPacks<T> > 1) {  // too much code to have it three times
            const Crew crew = all ? Crew(folds) : is_folder ? Crew(folds, 0, folders, 1) : Crew(transfers, folders, warps, 1 + folds);
            const bool begins = all || is_folder;
            ok = work(crew, begins ? 0 : folds, all ? transfers + folds : is_folder ? folds : transfers, fold_tile);
        } else if (all) {
            ok = work(Crew(folds), 0, transfers + folds, fold_tile);
        } else if (is_folder) {
            ok = work(Crew(folds, 0, folders, 1), 0, folds, fold_tile);
        } else {
            ok = work(Crew(transfers, folders, warps, 1 + folds), folds, transfers, fold_tile);
        }
        return channel.everyone(ok);
    }

    // A rank that folds everything has a group for each lane.
    __device__ u32 fold_jobs() const { return kOwners == kRootAlone ? lanes : 1; }

    // Jobs: those that fold, then one for each lane and peer that scatters, then one for each peer that collects; here `jobs`
    // of them from `first` on. A round has a tile for each lane.
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

    // Which ring a rank's contribution to a tile goes through, and its number there.
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

    // This rank's shard: waits for what all ranks contribute, and for places for the result.
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
        if (is_pair(u64(shard.send) | u64(kept) | shard.nbytes)) {
            if constexpr (kPairs) fold_pair(crew, tile, shard, kept);
        } else {
            fold_packs(crew, tile, shard, kept);
        }
        crew.everyone(true);
        if (!channel.is_peer(peer)) return true;
        chunks.signal_read(ring, peer, number);
        if (!receives(peer)) return true;
        fence_sys();
        chunks.signal_stored(1, peer, tile);
        return true;
    }

    // Are there two ranks, and whole packs to fold? Of groups of packs there is one way only.
    static constexpr bool kPairs = kGroupPacks<T> == 1;
    __device__ bool is_pair(u64 places) const { return kPairs && peers() == 1 && places % kPackNbytes == 0; }

    __device__ void fold_packs(const Crew& crew, u32 tile, const Shard& shard, char* kept) {
        const auto load = [&](int rank, u64 i) { return contribution(tile, shard, rank, i); };
        fold_shard<T, Op>(crew.member, crew.members, u32(packs_in(shard.nbytes)), channel.team.size, load, [&](u32 i, Pack pack) {
            if (receiver == kToNone || receives(me())) store_pack(kept, i, shard.nbytes, pack);
#pragma unroll 1
            for (int j = 0; j < peers(); ++j)
                if (receives(channel.peer(j))) put_pack(chunks.place(1, channel.peer(j), me(), tile) + i, pack);
        });
    }

    __device__ void fold_pair(const Crew& crew, u32 tile, const Shard& shard, char* kept) {
        constexpr int kFolds = sizeof(T) == 1 || sizeof(T) > 8 ? 1 : 2;  // of bytes and of pairs a fold is wider
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
    }

    // What a rank contributes to pack `i` of this rank's shard.
    __device__ Pack contribution(u32 tile, const Shard& shard, int rank, u64 i) const {
        if (rank == me()) return load_pack(shard.send, i, shard.nbytes);
        return get_pack(chunks.place(ring_of(tile), me(), rank, number_of(tile)) + i);
    }
};
