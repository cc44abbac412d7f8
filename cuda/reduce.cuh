// What Allreduce, Reduce and Reduce_scatter_block have in common: fold the ranks' vectors in rank order.
//
//   one-shot: every rank that needs a pack gets it from all ranks as packets and folds it. One trip.
//   two-shot: each tile is cut into one shard a rank; every rank sends shard r to rank r (ring 0), r folds
//             what it got and sends the result on (ring 1) to those who need it. Each byte travels twice,
//             however many ranks there are. A tile's three steps follow each other (scatter in step t, fold in
//             t + 1, collect in t + 2), so three tiles are on their way at a time.
#pragma once
#include "chunk.cuh"
#include "packet.cuh"
#include "reduce_ops.cuh"

// Pack `i` of `message` folded over all ranks; the peers' come as the packets of position 2 * i.
template <class T, class Op>
__device__ bool fold_packets(Packets& packets, const char* message, u64 i, u64 nbytes, Pack& result) {
    const Team& team = packets.channel.team;
    Fold<T, Op> fold;
#pragma unroll 1
    for (int first = 0; first < team.size; first += kAtOnce) {
        Pack packs[kAtOnce];
        if (!packets.receive_each(first, u32(i) * 2, packs)) return false;
#pragma unroll
        for (int s = 0; s < kAtOnce; ++s)
            if (first + s < team.size)
                fold.add(first + s, first + s == team.rank ? load_pack(message, i, nbytes) : packs[s]);
    }
    result = fold.result(team.size);
    return true;
}

constexpr int kToAll = -1;   // who gets a folded shard: every rank,
constexpr int kToNone = -2;  // only the rank that folded it, or the rank given

// `Tiling` says what lies where: shard(tile, rank) -> {address in sendbuf, address in recvbuf, nbytes}.
struct Shard {
    const char* send;
    char* recv;
    u64 nbytes;
};

template <class T, class Op, class Tiling>
struct TwoShot {
    Channel& channel;
    Chunks chunks;
    const Tiling tiling;
    const int receiver;  // a rank, kToAll or kToNone

    __device__ int me() const { return channel.team.rank; }
    __device__ bool receives(int rank) const { return receiver == kToAll || receiver == rank; }

    __device__ bool run() {
        const u64 tiles = tiling.tiles();
        for (u64 step = 0; step < tiles + 2; ++step) {
            if (step < tiles && !scatter(step)) return false;
            if (step >= 1 && step < tiles + 1 && !fold(step - 1)) return false;
            if (step >= 2 && receives(me()) && !collect(step - 2)) return false;
        }
        return true;
    }

    __device__ bool scatter(u64 tile) {
        const int rank = int(threadIdx.x), peers = channel.team.size - 1;
        if (!channel.everyone(!channel.is_peer(rank) || chunks.wait_for_place(0, rank, tile))) return false;
        const Crew crew(peers);
        for (u32 j = crew.first_job; j < u32(peers); j += crew.next_job) {
            const Shard shard = tiling.shard(tile, channel.peer(j));
            Pack* place = chunks.place(0, channel.peer(j), me(), tile);
            for (u64 i = crew.member; i < packs_in(shard.nbytes); i += crew.members)
                put_pack(place + i, load_pack(shard.send, i, shard.nbytes));
        }
        __syncthreads();
        if (channel.is_peer(rank)) chunks.signal_stored(0, rank, tile);
        return true;
    }

    __device__ bool fold(u64 tile) {
        const int rank = int(threadIdx.x);
        const bool peer = channel.is_peer(rank), sent_on = peer && receives(rank);
        const bool ready = (!peer || chunks.wait_for_chunk(0, rank, tile)) &&
                           (!sent_on || chunks.wait_for_place(1, rank, tile));
        if (!channel.everyone(ready)) return false;
        const Shard shard = tiling.shard(tile, me());
        const char* inbox = channel.team.base[me()] + chunks.offset(0, 0, tile);
        const u64 outbox = chunks.offset(1, me(), tile);
#pragma unroll 1  // eight loads at once are enough, and twice as many would not fit the registers
        for (u64 i = threadIdx.x; i < packs_in(shard.nbytes); i += blockDim.x) {
            const Pack pack = folded(inbox, shard, i);
            if (receiver == kToNone || receives(me())) store_pack(shard.recv, i, shard.nbytes, pack);
            for (int j = 0; j < channel.team.size - 1; ++j)
                if (receives(channel.peer(j)))
                    put_pack(reinterpret_cast<Pack*>(channel.team.base[channel.peer(j)] + outbox) + i, pack);
        }
        __syncthreads();
        if (peer) chunks.signal_read(0, rank, tile);
        if (sent_on) chunks.signal_stored(1, rank, tile);
        return true;
    }

    // Pack `i` of this rank's shard, folded: the peers' shards lie in `inbox`, one stride from each other.
    __device__ Pack folded(const char* inbox, const Shard& shard, u64 i) const {
        Fold<T, Op> fold;
#pragma unroll 1
        for (int first = 0; first < channel.team.size; first += kAtOnce) {
            Pack packs[kAtOnce];
#pragma unroll
            for (int s = 0; s < kAtOnce; ++s) {  // all loads are on their way before the first is used
                const int source = first + s;
                if (source < channel.team.size && source != me())
                    packs[s] = get_pack(reinterpret_cast<const Pack*>(inbox + source * chunks.source_stride()) + i);
            }
            const Pack own = load_pack(shard.send, i, shard.nbytes);
#pragma unroll
            for (int s = 0; s < kAtOnce; ++s)
                if (first + s < channel.team.size) fold.add(first + s, first + s == me() ? own : packs[s]);
        }
        return fold.result(channel.team.size);
    }

    __device__ bool collect(u64 tile) {
        const int rank = int(threadIdx.x), peers = channel.team.size - 1;
        if (!channel.everyone(!channel.is_peer(rank) || chunks.wait_for_chunk(1, rank, tile))) return false;
        const Crew crew(peers);
        for (u32 j = crew.first_job; j < u32(peers); j += crew.next_job) {
            const Shard shard = tiling.shard(tile, channel.peer(j));
            const Pack* place = chunks.place(1, me(), channel.peer(j), tile);
            for (u64 i = crew.member; i < packs_in(shard.nbytes); i += crew.members)
                store_pack(shard.recv, i, shard.nbytes, get_pack(place + i));
        }
        __syncthreads();
        if (channel.is_peer(rank)) chunks.signal_read(1, rank, tile);
        return true;
    }
};

// A vector that all ranks fold together: this block's part of it, cut into tiles of `size` shards.
struct VectorTiling {
    const char* send;
    char* recv;
    u64 nbytes, shard_nbytes;
    int size;

    __device__ VectorTiling(const ReduceArgs& args, const Chunks& chunks)
        : shard_nbytes(chunks.nbytes), size(args.team.size) {
        const Part part(args.nbytes, gridDim.x, blockIdx.x);
        send = args.send + part.begin;
        recv = args.recv + part.begin;
        nbytes = part.nbytes;
    }
    __device__ u64 tiles() const { return (nbytes + shard_nbytes * size - 1) / (shard_nbytes * size); }
    __device__ Shard shard(u64 tile, int rank) const {
        const u64 begin = smaller((tile * size + rank) * shard_nbytes, nbytes);
        return Shard{send + begin, recv + begin, smaller(shard_nbytes, nbytes - begin)};
    }
};
