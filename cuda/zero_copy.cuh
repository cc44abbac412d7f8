// Reductions without a copy on the way: where the ranks' buffers lie in windows (window.cuh), a rank loads its shard
// of every rank's vector where it is, folds it, and stores the result where it belongs.
//
// Every rank tells every other where its buffers lie, so all of them know whether all do, and take the same way. Each
// byte crosses the wire twice, as in the two-shot algorithm, but there are no rings to wait for and no steps.
// In place is fine where a shard is read and written by one rank only, pack by pack. It is not for Reduce_scatter_block,
// whose result replaces a block that others read: then a rank says that its buffer is in no window.
#pragma once
#include "reduce.cuh"
#include "window.cuh"

struct Reach {  // in shared memory: every rank's buffers as mapped here, where `all` that are needed are
    const char* send[kMaxRanks];
    char* recv[kMaxRanks];
    bool all;
};

// All threads exchange places with all peers, and wait until they have entered; false: leave. The recvbufs that are
// needed are those of the ranks for which `receives(rank)`.
template <class Receives>
__device__ bool learn_reach(Packets& packets, const char* send, char* recv, Receives receives, Reach& reach) {
    Channel& channel = packets.channel;
    const Team& team = channel.team;
    if (!packets.await_free()) return false;
    const int rank = int(threadIdx.x);
    u64 send_word = send == recv && !receives(team.rank) ? 0 : pack_place(team.send, send);
    u64 recv_word = pack_place(team.recv, recv);
    bool ok = true;
    if (channel.is_peer(rank)) {
        packets.send_word(packets.outbox(rank), 0, send_word);
        packets.send_word(packets.outbox(rank), 1, recv_word);
        ok = packets.receive_word(rank, 0, send_word) && packets.receive_word(rank, 1, recv_word) &&
             channel.wait_for_entered(rank, channel.epoch);
    }
    if (rank < team.size) {
        reach.send[rank] = unpack_place(team, rank, send_word);
        reach.recv[rank] = unpack_place(team, rank, recv_word);
    }
    const bool all = channel.everyone(rank >= team.size || (send_word != 0 && (recv_word != 0 || !receives(rank))));
    if (rank == 0) reach.all = all;
    return channel.everyone(ok);
}

template <class T, class Op, class Tiling>
struct ZeroCopy {
    Channel& channel;
    const Reach& reach;
    const Tiling tiling;  // of one tile
    const int receiver;   // a rank, kToAll or kToNone

    // `send` and `recv`: what the tiling's addresses count from.
    __device__ bool run(const char* send, const char* recv) {
        const Shard shard = tiling.shard(0, channel.team.rank);
        const u64 from = u64(shard.send - send), to = u64(shard.recv - recv);
#pragma unroll 1
        for (u64 i = threadIdx.x; i < packs_in(shard.nbytes); i += blockDim.x) {
            const Pack pack = fold_loaded<T, Op>(
                channel.team.size, [&](int rank) { return get_pack(reach.send[rank] + from, i, shard.nbytes); });
            if (receiver == kToNone) store_pack(shard.recv, i, shard.nbytes, pack);
            else if (receiver != kToAll) put_pack(reach.recv[receiver] + to, i, shard.nbytes, pack);
            else store_to_all(to, i, shard.nbytes, pack);
        }
        return meet();
    }

  private:
    __device__ void store_to_all(u64 to, u64 i, u64 nbytes, Pack pack) const {
#pragma unroll 1
        for (int j = 0; j < channel.team.size; ++j)  // the last is this rank
            put_pack(reach.recv[channel.peer(j)] + to, i, nbytes, pack);
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
    Packets packets(channel);
    const auto whole = tiling_of(~0ull);
    if (whole.tiles() == 0) return false;  // nothing to do for this block, on any rank
    const auto receives = [&](int rank) { return receiver == kToAll || receiver == rank; };
    if (!learn_reach(packets, args.send, args.recv, receives, reach)) return false;
    if (reach.all) return ZeroCopy<T, Op, decltype(whole)>{channel, reach, whole, receiver}.run(args.send, args.recv);
    Chunks chunks(channel);
    const auto tiling = tiling_of(chunks.nbytes);
    return TwoShot<T, Op, decltype(whole)>{channel, chunks, tiling, receiver}.run();
}
