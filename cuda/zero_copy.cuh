// Reductions without a copy on the way: where the ranks' buffers lie in windows (reach.cuh), a rank loads its shard
// of every rank's vector where it is, folds it, and stores the result where it belongs.
//
// Each byte crosses the wire twice, as in the two-shot algorithm, but there are no rings to wait for.
// In place is fine where a shard is read and written by one rank only, pack by pack. It is not for Reduce_scatter_block,
// whose result replaces a block that others read: then a rank says that its buffer is in no window.
#pragma once
#include "reach.cuh"
#include "reduce.cuh"

constexpr int kResults = 3;
constexpr u32 kInputNbytes = 12288;  // of all ranks' pieces that are folded at a time

struct FoldStages {  // of one block, in shared memory
    alignas(128) char input[2][kInputNbytes];  // the ranks' pieces, one after the other
    alignas(128) char result[kResults][kInputNbytes / 2];
    u64 loaded[2];
};

template <class T, class Op, class Tiling>
struct ZeroCopy {
    Channel& channel;
    const Reach& reach;
    const Tiling tiling;  // of one tile
    const int receiver;   // a rank, kToAll or kToNone
    FoldStages& stages;

    // `send` and `recv`: what the tiling's addresses count from.
    __device__ bool run(const char* send, const char* recv) {
        const Shard shard = tiling.shard(0, channel.team.rank);
        const u64 from = u64(shard.send - send), to = u64(shard.recv - recv);
        const u64 whole = can_bulk(shard, from, to) ? shard.nbytes / kPackNbytes * kPackNbytes : 0;
        if (whole > 0) fold_bulk(shard, from, to, whole);
#pragma unroll 1
        for (u64 i = whole / kPackNbytes + threadIdx.x; i < packs_in(shard.nbytes); i += blockDim.x) {
            const Pack pack = fold_loaded<T, Op>(
                channel.team.size, [&](int rank) { return get_pack(reach.send[rank] + from, i, shard.nbytes); });
#pragma unroll 1
            for (int j = 0; j < channel.team.size; ++j)
                if (char* result = result_at(channel.peer(j), shard, to)) put_pack(result, i, shard.nbytes, pack);
        }
        return meet();
    }

  private:
    // Where the result goes on `rank`; null if it gets none.
    __device__ char* result_at(int rank, const Shard& shard, u64 to) const {
        if (receiver == kToNone) return rank == channel.team.rank ? shard.recv : nullptr;
        return receiver == kToAll || receiver == rank ? reach.recv[rank] + to : nullptr;
    }

    __device__ bool can_bulk(const Shard& shard, u64 from, u64 to) const {
        u64 addresses = 0;
        for (int rank = 0; rank < channel.team.size; ++rank)
            addresses |= u64(reach.send[rank] + from) | u64(result_at(rank, shard, to));
        return addresses % kPackNbytes == 0;
    }

    // Piece by piece: while all threads fold one, the ranks' next pieces arrive, and the results before leave.
    __device__ void fold_bulk(const Shard& shard, u64 from, u64 to, u64 nbytes) {
        const u32 each = kInputNbytes / channel.team.size / 128 * 128;
        const u64 count = (nbytes + each - 1) / each;
        const auto load = [&](u64 piece) {
            const u32 length = u32(smaller(each, nbytes - piece * each));
            bulk_expect(&stages.loaded[piece % 2], length * channel.team.size);
            for (int j = 0; j < channel.team.size; ++j) {
                const int rank = channel.peer(j);
                bulk_load(stages.input[piece % 2] + rank * each, reach.send[rank] + from + piece * each, length,
                          &stages.loaded[piece % 2]);
            }
        };
        if (threadIdx.x == 0) {
            for (u64& barrier : stages.loaded) bulk_barrier_init(&barrier);
            fence_bulk();
            load(0);
        }
        __syncthreads();
        for (u64 piece = 0; piece < count; ++piece) {
            if (threadIdx.x == 0) {
                bulk_await_read<1>();  // of the results, all but the last have left
                if (piece + 1 < count) load(piece + 1);
            }
            const u32 length = u32(smaller(each, nbytes - piece * each));
            bulk_await(&stages.loaded[piece % 2], u32(piece / 2 % 2));
            fold_piece(stages.input[piece % 2], each, stages.result[piece % kResults], length);
            fence_bulk();
            __syncthreads();
            if (threadIdx.x != 0) continue;
            for (int j = 0; j < channel.team.size; ++j)
                if (char* result = result_at(channel.peer(j), shard, to))
                    bulk_store(result + piece * each, stages.result[piece % kResults], length);
            bulk_commit();
        }
        if (threadIdx.x == 0) bulk_await_stored();
    }

    __device__ void fold_piece(const char* input, u32 each, char* result, u32 nbytes) const {
        for (u32 i = threadIdx.x; i < nbytes / kPackNbytes; i += blockDim.x)
            reinterpret_cast<Pack*>(result)[i] = fold_loaded<T, Op>(
                channel.team.size, [&](int rank) { return reinterpret_cast<const Pack*>(input + rank * each)[i]; });
    }

    // No rank goes on before all have loaded and stored what they had to.
    __device__ bool meet() {
        Chunks chunks(channel);
        const int peer = int(threadIdx.x);
        __syncthreads();
        if (channel.is_peer(peer)) {
            fence_sys();
            chunks.signal_stored(0, peer, 0);
        }
        return channel.everyone(!channel.is_peer(peer) || chunks.wait_for_chunk(0, peer, 0));
    }
};

// A reduction of long vectors: without a copy if all the buffers that it takes are in windows, else in two shots.
// `tiling_of(most)` cuts this block's part of the vector into shards of at most `most` bytes.
template <class T, class Op, class TilingOf>
__device__ bool reduce_long(Channel& channel, const ReduceArgs& args, int receiver, TilingOf tiling_of) {
    __shared__ Reach reach;
    __shared__ FoldStages stages;
    const auto whole = tiling_of(~0ull);
    if (whole.tiles() == 0) return false;  // nothing to do for this block, on any rank
    const bool replaced = receiver == kToNone && args.send == args.recv;
    const Own own{args.send, args.recv, replaced ? Place{0, nullptr} : args.team.send, args.team.recv};
    const auto sends = [](int) { return true; };
    const auto receives = [&](int rank) { return receiver == kToAll || receiver == rank; };
    Packets packets(channel);
    if (!learn_reach(packets, own, sends, receives, reach)) return false;
    if (reach.all)
        return ZeroCopy<T, Op, decltype(whole)>{channel, reach, whole, receiver, stages}.run(args.send, args.recv);
    Chunks chunks(channel);
    return TwoShot<T, Op, decltype(whole)>{channel, chunks, tiling_of(chunks.nbytes), receiver, replaced}.run();
}
