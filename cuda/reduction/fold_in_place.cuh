// Reduce_scatter_block in place, in windows: the result belongs at the beginning of the vector, which rank 0 reads before.
//
// For each tile
//   1. a rank loads its shard of every rank's vector, folds it, and stores the result in place of its own contribution, which
//      no other rank reads;
//   2. rank 0 signals that it has read the tile at the beginning;
//   3. the result moves there, from the cache, while the next tile comes over the links. A thread moves what it has stored.
// All ranks meet at the end.
#pragma once
#include "reduction/push_reduce.cuh"

// In chunks, which are shorter with more ranks. A tile costs a barrier on rank 0 and a poll elsewhere, so a shard of
// fewer than kTiledChunks chunks moves at the end. 2 and 4 H200 (docs/design_notes.md, "In place the result of a long
// `Reduce_scatter_block` moves tile by tile").
constexpr u64 kTileChunks = 2, kTiledChunks = 12;

template <class T, class Op>
struct FoldInPlace {
    Channel& channel;
    const Reach& reach;
    const u64 from;     // where the shard begins in the vector
    const Shard shard;  // this block's, where this rank contributes to it
    char* const to;     // where the result belongs
    const u64 tile_packs;
    Chunks chunks;

    template <class Tiling>
    __device__ FoldInPlace(Channel& channel, const Reach& reach, const ReduceArgs& args, const Tiling& tiling, char* to)
        : channel(channel), reach(reach), from(u64(tiling.shard(0, args.team.rank).send - args.send)),
          shard(tiling.shard(0, args.team.rank)), to(to), tile_packs(kTileChunks * args.team.chunk_nbytes / kPackNbytes),
          chunks(channel) {}

    __device__ bool run() {
        const u64 tiles = (packs_in(shard.nbytes) + tile_packs - 1) / tile_packs;
        bool ok = true;
        for (u64 tile = 0; ok && tile < tiles; ++tile) {
            fold(tile);
            if (channel.team.rank == 0) signal_tile_read(tile);
            else if (tile > 0) ok = move(tile - 1);
        }
        if (ok && channel.team.rank > 0) ok = move(tiles - 1);
        return channel.everyone(ok) && meet(channel, 0);
    }

  private:
    __device__ u64 packs(u64 tile) const { return smaller(packs_in(shard.nbytes) - tile * tile_packs, tile_packs); }

    __device__ void fold(u64 tile) const {
        const u64 begin = tile * tile_packs;
        const auto load = [&](int rank, u64 i) { return get_pack(reach.send[rank] + from, begin + i, shard.nbytes); };
        const auto keep = [&](u64 i, Pack pack) { store_pack(shard.recv, begin + i, shard.nbytes, pack); };
        fold_shard<T, Op>(threadIdx.x, blockDim.x, packs(tile), channel.team.size, load, keep);
    }

    __device__ void signal_tile_read(u64 tile) {
        __syncthreads();
        const int peer = int(threadIdx.x);
        if (channel.is_peer(peer)) chunks.signal_read(0, peer, tile);
    }

    // Each warp waits by itself: rank 0 is about as far as this rank, so waits are short. False: leave.
    __device__ bool move(u64 tile) {
        const bool read = threadIdx.x % 32 != 0 || chunks.wait_for_taken(0, 0, tile);
        if (__any_sync(0xffffffffu, !read)) return false;
        __syncwarp();
        const u64 begin = tile * tile_packs;
        move_packs(
            begin + threadIdx.x, begin + packs(tile), blockDim.x, [&](u64 i) { return load_pack(shard.recv, i, shard.nbytes); },
            [&](u64 i, Pack pack) { store_pack(to, i, shard.nbytes, pack); });
        return true;
    }
};
