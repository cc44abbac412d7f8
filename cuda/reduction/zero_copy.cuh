// Reductions of long vectors without intermediate copies, if the ranks' buffers are in windows (reach.cuh).
//
//   1. All ranks exchange the places of their buffers, and enter the operation (exchange_places).
//   2. A rank loads its shard of every rank's vector in place, folds it, and stores the result where it belongs.
//   3. All ranks meet (push_reduce.cuh), so that no rank changes a buffer that is still read.
// Each byte crosses the links twice, as in the two-shot algorithm, but there are no rings to wait for. In place works, since
// one rank alone reads and writes a shard, pack by pack.
// Launch: one block for each channel in use, kMaxThreads threads.
#pragma once
#include "reduction/fold_in_place.cuh"
#include "reduction/push_reduce.cuh"
#include "reduction/two_shot.cuh"

// Loads from all ranks and stores to all ranks at the same time are slower than one after the other. For shards of fewer
// chunks the second meeting costs more. Not measured by itself.
constexpr u64 kApartChunks = 2;

// In place PushReduce is impossible; with more than two ranks rings are faster from shards of so many bytes on (4 H200,
// docs/design_notes.md, "The number of loads in flight limits a fold of chunks").
constexpr u64 kRingsNbytes = 256 << 10;

template <class T, class Op, class Tiling>
struct ZeroCopy {
    Channel& channel;
    const Reach& reach;
    const Tiling tiling;  // the tiling of one tile
    const int receiver;   // a rank, kToAll or kToNone
    const bool apart;     // first all ranks load, then all ranks store

    // All threads. False: leave. `send` and `recv`: the beginnings of the buffers that the tiling cuts.
    __device__ bool run(const char* send, const char* recv) {
        const Shard shard = tiling.shard(0, channel.team.rank);
        const u64 from = u64(shard.send - send), to = u64(shard.recv - recv);
        const u64 whole = goes_fast(shard, from, to) ? shard.nbytes / kPackNbytes : 0;
        if constexpr (kGroupPacks<T> == 1) fold<true>(shard, from, to, 0, whole);
        fold<false>(shard, from, to, whole, packs_in(shard.nbytes));
        if (!meet(channel, 0)) return false;
        if (!apart) return true;
        for (int j = 0; j < channel.team.size - 1; ++j)
            copy_shard(shard.recv, reach.recv[channel.peer(j)] + to, shard.nbytes);
        return meet(channel, 1);
    }

  private:
    // Whether all packs are aligned everywhere, and there are few ranks.
    __device__ bool goes_fast(const Shard& shard, u64 from, u64 to) const {
        u64 places = u64(shard.recv);
        for (int rank = 0; rank < channel.team.size; ++rank) {
            places |= u64(reach.send[rank]) + from;
            if (!apart && (receiver == kToAll || receiver == rank)) places |= u64(reach.recv[rank]) + to;
        }
        return kGroupPacks<T> == 1 && channel.team.size <= kFewRanks && places % kPackNbytes == 0;
    }

    // Packs `begin` to `end` of the shard.
    template <bool kWhole>
    __device__ void fold(const Shard& shard, u64 from, u64 to, u64 begin, u64 end) const {
        const auto load = [&](int rank, u64 i) { return get_pack<kWhole>(reach.send[rank] + from, begin + i, shard.nbytes); };
        const auto keep = [&](u64 i, Pack pack) {
            if (receiver == kToNone || apart) put_pack<kWhole>(shard.recv, begin + i, shard.nbytes, pack);
            else if (receiver != kToAll) put_pack<kWhole>(reach.recv[receiver] + to, begin + i, shard.nbytes, pack);
            else store_to_all<kWhole>(to, begin + i, shard.nbytes, pack);
        };
        fold_far<T, Op, kWhole>(threadIdx.x, blockDim.x, end - begin, channel.team.size, load, keep);
    }

    template <bool kWhole>
    __device__ void store_to_all(u64 to, u64 i, u64 nbytes, Pack pack) const {
#pragma unroll 1
        for (int j = 0; j < channel.team.size; ++j)  // the last is this rank
            put_pack<kWhole>(reach.recv[channel.peer(j)] + to, i, nbytes, pack);
    }
};

// A reduction of long vectors: without a copy if all buffers that it needs are in windows, else in two shots. All threads.
// False: leave. tiling_of(most) cuts this block's part of the vector into shards of at most `most` bytes. `to`: where the
// result of this rank's shard belongs if the tiling has another place, or null.
template <class T, class Op, Owners kOwners = kAllRanks, class TilingOf>
__device__ bool reduce_long(Channel& channel, const ReduceArgs& args, int receiver, TilingOf tiling_of, char* to = nullptr) {
    __shared__ Reach reach;
    const auto whole = tiling_of(~0ull);
    if (whole.tiles() == 0) return false;  // nothing to do for this block, on any rank
    const OwnBuffers own{args.send, args.recv, args.team.send, args.team.recv};
    const auto sends = [](int) { return true; };
    const auto receives = [&](int rank) { return receiver == kToAll || receiver == rank; };
    Packets packets(channel);
    const bool windows = args.team.windows != nullptr;  // on all ranks or on none
    if (windows && !exchange_places(packets, own, sends, receives, reach)) return false;
    const u64 longest = whole.shard(0, 0).nbytes;  // the same on all ranks
    const bool apart = receiver == kToAll && longest >= kApartChunks * args.team.chunk_nbytes;
    const bool replaced = windows && !reach.apart;  // in place, or not all in windows
    if (windows && !replaced && apart && can_push<T>(args.team)) return PushReduce<T, Op>(channel, reach, args).run();
    const bool long_in_place = replaced && receiver == kToAll && args.team.size > 2 && longest >= kRingsNbytes;
    if (!windows || !reach.all || long_in_place) {
        const u32 lanes = receiver == kToNone ? lanes_of(args.team, whole.shard_nbytes) : 1;
        Chunks chunks(channel, receiver == kToNone ? int(lanes) : kRings);  // results stay here, so no ring is needed for them
        return TwoShot<T, Op, decltype(whole), kOwners>{channel, chunks, tiling_of(chunks.nbytes), receiver, lanes, to}.run();
    }
    if constexpr (kGroupPacks<T> == 1)
        if (to != nullptr && longest >= kTiledChunks * args.team.chunk_nbytes)
            return FoldInPlace<T, Op>{channel, reach, args, whole, to}.run();
    const bool ok = ZeroCopy<T, Op, decltype(whole)>{channel, reach, whole, receiver, apart}.run(args.send, args.recv);
    // The tiling is computed again here, so that it takes no registers until now.
    if (ok && to != nullptr) move_result(tiling_of(~0ull).shard(0, args.team.rank), to);
    return ok;
}
