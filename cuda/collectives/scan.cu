// Scan and Exscan: rank r's recvbuf becomes the fold of the sendbufs of ranks 0 to r, for Exscan to r - 1, in rank order.
//
//   scan_one_shot  small: every rank sends everything to the ranks above it, as packets
//   scan_two_shot  large: every rank folds a shard of each tile, and sends each rank its own prefix of it: in chunks, or without
//                  a copy on the way if all buffers are in windows (reach.cuh)
//
// Both forms give the same bits (reduce_ops.cuh). In place: send == recv. Exscan does not change rank 0's recvbuf.
// Launch: one block for each channel in use; kFoldThreads threads in one shot, kMaxThreads in two.
#include "reduction/push_reduce.cuh"
#include "reduction/two_shot.cuh"

struct ScanArgs : ReduceArgs {  // without a root
    int exclusive;              // 1: Exscan
};

// Calls deliver(rank, prefix) for each rank that gets one, in rank order; load(rank) returns a rank's pack. Packs of
// kChunksAtOnce ranks are loaded before the first prefix is delivered.
template <class T, class Op, class Load, class Deliver>
__device__ void fold_prefixes(int size, bool exclusive, Load load, Deliver deliver) {
    Fold<T, Op> fold;
#pragma unroll 1
    for (int first = 0; first < size; first += kChunksAtOnce) {
        Pack packs[kChunksAtOnce];
#pragma unroll
        for (int s = 0; s < kChunksAtOnce; ++s)
            if (first + s < size) packs[s] = load(first + s);
#pragma unroll
        for (int s = 0; s < kChunksAtOnce; ++s) {
            const int rank = first + s;
            if (rank >= size) break;
            if (exclusive && rank > 0) deliver(rank, fold.result(rank));
            fold.add(rank, packs[s]);
            if (!exclusive) deliver(rank, fold.result(rank + 1));
        }
    }
}

// This rank's prefix of pack `i`: the fold over ranks below `end`, whose packs come as packets at position 2 * i. False:
// leave.
template <class T, class Op>
__device__ bool fold_packets_below(Packets& packets, const char* message, u64 i, u64 nbytes, int end, Pack& result) {
    const int me = packets.channel.team.rank;
    Fold<T, Op> fold;
#pragma unroll 1
    for (int first = 0; first < end; first += kAtOnce) {
        Pack packs[kAtOnce];
        if (!packets.receive_each(first, u32(i) * 2, packs, end)) return false;
#pragma unroll
        for (int s = 0; s < kAtOnce; ++s)
            if (first + s < end) fold.add(first + s, first + s == me ? load_pack(message, i, nbytes) : packs[s]);
    }
    result = fold.result(end);
    return true;
}

template <class T, class Op>
__global__ void __launch_bounds__(kFoldThreads, 1) scan_one_shot(const __grid_constant__ ScanArgs args) {
    const Team& team = args.team;
    const Part part(args.nbytes, gridDim.x, blockIdx.x);
    const char* send = args.send + part.begin;
    const int end = args.exclusive ? team.rank : team.rank + 1;
    await_previous(u64(send) ^ part.nbytes ^ Channel::dependency(team));
    const Pack first = load_first(send, part.nbytes);
    Channel channel(team);
    Packets packets(channel);
    bool ok = channel.await_slots();
    for (u64 i = threadIdx.x; ok && i < packs_in(part.nbytes); i += blockDim.x) {
        const Pack pack = i == threadIdx.x ? first : load_pack(send, i, part.nbytes);
        for (int above = team.rank + 1; above < team.size; ++above) packets.send(packets.outbox(above), u32(i) * 2, pack);
    }
    for (u64 i = threadIdx.x; ok && end > 0 && i < packs_in(part.nbytes); i += blockDim.x) {
        Pack result;
        ok = fold_packets_below<T, Op>(packets, send, i, part.nbytes, end, result);
        if (ok) store_pack(args.recv + part.begin, i, part.nbytes, result);
    }
    const bool all_entered = ok && part.nbytes > 0 && team.rank == team.size - 1;  // only the last rank gets data of all
    channel.leave(all_entered, [&](int peer) { return ok && peer < end; });
}

// Folds this rank's shard of a tile in two shots, for every rank its own prefix. False: leave.
template <class T, class Op>
__device__ bool fold_tile(TwoShot<T, Op, VectorTiling>& shots, const Crew& crew, u32 tile, bool exclusive) {
    Channel& channel = shots.channel;
    Chunks& chunks = shots.chunks;
    const int me = shots.me(), peer = int(crew.member);
    const bool is_peer = channel.is_peer(peer), has_prefix = peer > 0 || !exclusive;
    const bool ready = !is_peer || (chunks.wait_for_chunk(0, peer, tile) &&
                                    (!has_prefix || chunks.wait_for_place(1, peer, tile)));
    if (!crew.everyone(ready)) return false;
    const Shard shard = shots.tiling.shard(tile, me);
#pragma unroll 1
    for (u64 i = crew.member; i < packs_in(shard.nbytes); i += crew.members)
        fold_prefixes<T, Op>(
            channel.team.size, exclusive,
            [&](int rank) {
                if (rank == me) return load_pack(shard.send, i, shard.nbytes);
                return get_pack(chunks.place(0, me, rank, tile) + i);
            },
            [&](int rank, Pack prefix) {
                if (rank == me) store_pack(shard.recv, i, shard.nbytes, prefix);
                else put_pack(chunks.place(1, rank, me, tile) + i, prefix);
            });
    crew.everyone(true);
    if (!is_peer) return true;
    chunks.signal_read(0, peer, tile);
    if (!has_prefix) return true;
    fence_sys();
    chunks.signal_stored(1, peer, tile);
    return true;
}

// Each rank folds its shard of the vectors in place, and stores the prefixes where they belong; then all ranks meet. False:
// leave.
template <class T, class Op>
__device__ bool fold_in_windows(Channel& channel, const ScanArgs& args, const Reach& reach, const Shard& shard) {
    const u64 from = u64(shard.send - args.send), to = u64(shard.recv - args.recv);
#pragma unroll 1
    for (u64 i = threadIdx.x; i < packs_in(shard.nbytes); i += blockDim.x)
        fold_prefixes<T, Op>(
            args.team.size, args.exclusive,
            [&](int rank) { return get_pack(reach.send[rank] + from, i, shard.nbytes); },
            [&](int rank, Pack prefix) { put_pack(reach.recv[rank] + to, i, shard.nbytes, prefix); });
    return meet(channel, 0);
}

template <class T, class Op>
__global__ void __launch_bounds__(kMaxThreads, 1) scan_two_shot(const __grid_constant__ ScanArgs args) {
    __shared__ Reach reach;
    const Team& team = args.team;
    Channel channel(team);
    Packets packets(channel);
    const VectorTiling whole(args, ~0ull);
    if (whole.tiles() == 0) return channel.leave();  // nothing to do for this block, on any rank
    const OwnBuffers own{args.send, args.recv, team.send, team.recv};
    const auto sends = [](int) { return true; };
    const auto receives = [&](int rank) { return rank > 0 || !args.exclusive; };
    bool ok = exchange_places(packets, own, sends, receives, reach);
    if (ok && reach.all) {
        ok = fold_in_windows<T, Op>(channel, args, reach, whole.shard(0, team.rank));
    } else if (ok) {
        Chunks chunks(channel);
        const int receiver = receives(team.rank) ? kToAll : kToNone;  // whether this rank collects
        TwoShot<T, Op, VectorTiling> shots{channel, chunks, VectorTiling(args, chunks.nbytes), receiver, 1, nullptr};
        const auto fold = [&](const Crew& crew, u32 tile) { return fold_tile(shots, crew, tile, args.exclusive); };
        ok = shots.run_once(fold);
    }
    channel.leave(ok);
}
