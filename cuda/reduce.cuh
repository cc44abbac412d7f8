// What Allreduce, Reduce and Reduce_scatter_block have in common: fold the ranks' vectors in rank order.
//
//   one-shot: every rank that needs a pack gets it from all ranks as packets and folds it. One trip.
//   two-shot: each tile is cut into one shard a rank; every rank sends shard r to rank r (ring 0), r folds
//             what it got and sends the result on (ring 1) to those who need it. Each byte travels twice,
//             however many ranks there are. A tile is scattered in step t, folded in t + 1 and collected in
//             t + 2, so three tiles are on their way at a time.
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

constexpr int kChunksAtOnce = 4;  // ranks whose packs are loaded before the first is used

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
    __device__ int peers() const { return channel.team.size - 1; }
    __device__ bool receives(int rank) const { return receiver == kToAll || receiver == rank; }
    __device__ bool has(u64 tile) const { return tile < tiling.tiles(); }  // also false for one before the first

    __device__ bool run() {
        const u64 tiles = tiling.tiles();
        for (u64 step = 0; tiles != 0 && step < tiles + 2; ++step)
            if (!move(step, step - 1, step - 2)) return false;
        return true;
    }

    // One step: scatter one tile, fold an earlier one, collect a still earlier one.
    __device__ bool move(u64 scattered, u64 folded, u64 collected) {
        const bool ready = chunks.await(4, [&](u32 kind, int peer) {
            if (kind == 0) return !has(scattered) || chunks.wait_for_place(0, peer, scattered);
            if (kind == 1) return !has(folded) || chunks.wait_for_chunk(0, peer, folded);
            if (kind == 2) return !has(folded) || !receives(peer) || chunks.wait_for_place(1, peer, folded);
            return !has(collected) || !receives(me()) || chunks.wait_for_chunk(1, peer, collected);
        });
        if (!ready) return false;
        const u32 parts = peers() > 0 ? peers() : 1;  // folding is worth as many jobs as sending
        const Crew crew(parts + 2 * peers());
        for (u32 job = crew.first_job; job < parts + 2 * peers(); job += crew.next_job) {
            if (job < parts) fold(crew, folded, job, parts);
            else if (job < parts + peers()) scatter(crew, scattered, channel.peer(job - parts));
            else collect(crew, collected, channel.peer(job - parts - peers()));
        }
        __syncthreads();
        if (channel.is_peer(int(threadIdx.x))) signal(int(threadIdx.x), scattered, folded, collected);
        return true;
    }

    __device__ void signal(int peer, u64 scattered, u64 folded, u64 collected) {
        fence_sys();
        if (has(scattered)) chunks.signal_stored(0, peer, scattered);
        if (has(folded)) chunks.signal_read(0, peer, folded);
        if (has(folded) && receives(peer)) chunks.signal_stored(1, peer, folded);
        if (has(collected) && receives(me())) chunks.signal_read(1, peer, collected);
    }

    __device__ void scatter(const Crew& crew, u64 tile, int peer) const {
        if (!has(tile)) return;
        const Shard shard = tiling.shard(tile, peer);
        Pack* place = chunks.place(0, peer, me(), tile);
        move_packs(
            crew.member, packs_in(shard.nbytes), crew.members,
            [&](u64 i) { return load_pack(shard.send, i, shard.nbytes); },
            [&](u64 i, Pack pack) { put_pack(place + i, pack); });
    }

    // Part `part` of `parts` of this rank's shard.
    __device__ void fold(const Crew& crew, u64 tile, u32 part, u32 parts) const {
        if (!has(tile)) return;
        const Shard shard = tiling.shard(tile, me());
        const u32 packs = u32(packs_in(shard.nbytes)), each = (packs + parts - 1) / parts;
        const u32 end = u32(smaller(u64(each) * (part + 1), packs));
#pragma unroll 1  // twice as many loads at once would not fit the registers
        for (u32 i = each * part + crew.member; i < end; i += crew.members) {
            const Pack pack = folded_pack(tile, shard, i);
            if (receiver == kToNone || receives(me())) store_pack(shard.recv, i, shard.nbytes, pack);
#pragma unroll 1
            for (int j = 0; j < peers(); ++j)
                if (receives(channel.peer(j))) put_pack(chunks.place(1, channel.peer(j), me(), tile) + i, pack);
        }
    }

    // Pack `i` of this rank's shard, folded over all ranks.
    __device__ Pack folded_pack(u64 tile, const Shard& shard, u64 i) const {
        return fold_loaded<T, Op>(channel.team.size, [&](int rank) {
            return rank == me() ? load_pack(shard.send, i, shard.nbytes) : get_pack(chunks.place(0, me(), rank, tile) + i);
        });
    }

    __device__ void collect(const Crew& crew, u64 tile, int peer) const {
        if (!has(tile) || !receives(me())) return;
        const Shard shard = tiling.shard(tile, peer);
        const Pack* place = chunks.place(1, me(), peer, tile);
        move_packs(
            crew.member, packs_in(shard.nbytes), crew.members,
            [&](u64 i) { return get_pack(place + i); },
            [&](u64 i, Pack pack) { store_pack(shard.recv, i, shard.nbytes, pack); });
    }
};

// A vector that all ranks fold together: this block's part of it, cut into tiles of `size` shards.
struct VectorTiling {
    const char* send;
    char* recv;
    u64 nbytes, shard_nbytes;
    int size;

    __device__ VectorTiling(const ReduceArgs& args, u64 most) : size(args.team.size) {
        const Part part(args.nbytes, gridDim.x, blockIdx.x);
        send = args.send + part.begin;
        recv = args.recv + part.begin;
        nbytes = part.nbytes;
        shard_nbytes = share_of(nbytes, size, most);
    }
    __device__ u64 tiles() const { return (nbytes + shard_nbytes * size - 1) / (shard_nbytes * size); }
    __device__ Shard shard(u64 tile, int rank) const {
        const u64 begin = smaller((tile * size + rank) * shard_nbytes, nbytes);
        return Shard{send + begin, recv + begin, smaller(shard_nbytes, nbytes - begin)};
    }
};
