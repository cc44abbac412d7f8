// Reduce of two ranks by stores alone: where root's recvbuf lies in a window and is not its sendbuf, it is the room for what
// the other rank contributes. That one stores its vector there, tile by tile, and root folds what has come.
//
// The vector crosses the wire once, and links carry stores faster than loads. Root folds one tile while the next is on its
// way.
#pragma once
#include "push_reduce.cuh"

// A tile costs a fence and a signal, and nothing is on its way while root folds the last one.
constexpr u64 kMostPushes = 32, kLeastPush = 16 << 10;

template <class T, class Op>
struct PushToRoot {
    Channel& channel;
    const int root;
    const Part part;  // of the vector: this block's
    const char* send;
    char* const recv;  // root's
    const u64 tile_nbytes;
    Chunks chunks;

    __device__ PushToRoot(Channel& channel, const Reach& reach, const ReduceArgs& args)
        : channel(channel),
          root(args.root),
          part(args.nbytes, gridDim.x, blockIdx.x),
          send(args.send + part.begin),
          recv(reach.recv[args.root] + part.begin),
          tile_nbytes((part.nbytes / kMostPushes > kLeastPush ? part.nbytes / kMostPushes : kLeastPush) / kPackNbytes * kPackNbytes),
          chunks(channel) {}

    __device__ bool run() {
        const bool is_root = channel.team.rank == root;
        bool ok = true;
        for (u64 tile = 0; ok && tile * tile_nbytes < part.nbytes; ++tile) {
            if (is_root) ok = fold(tile);
            else store(tile);
        }
        return ok;
    }

  private:
    __device__ u64 nbytes(u64 tile) const { return smaller(tile_nbytes, part.nbytes - tile * tile_nbytes); }

    __device__ void store(u64 tile) {
        copy_shard(send + tile * tile_nbytes, recv + tile * tile_nbytes, nbytes(tile));
        __syncthreads();
        if (threadIdx.x != 0) return;
        fence_sys();
        chunks.signal_stored(0, root, tile);
    }

    __device__ bool fold(u64 tile) {
        if (!channel.everyone(threadIdx.x != 0 || chunks.wait_for_chunk(0, channel.peer(0), tile))) return false;
        const char* mine = send + tile * tile_nbytes;
        char* theirs = recv + tile * tile_nbytes;
        const u64 length = nbytes(tile);
        const auto load = [&](int rank, u64 i) { return rank == root ? load_pack(mine, i, length) : get_pack(theirs, i, length); };
        const auto keep = [&](u64 i, Pack pack) { store_pack(theirs, i, length, pack); };
        fold_shard<T, Op, kFoldsAtOnce>(threadIdx.x, blockDim.x, packs_in(length), 2, load, keep);
        return true;
    }
};
