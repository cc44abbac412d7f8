// Reductions of elements that do not divide a pack: records of 12, 24, 32, 40 … bytes.
//
// A *group* is the shortest run of packs that holds whole elements: 48 bytes for 12 or 24. Parts, shards and tiles
// are cut into whole groups; one thread folds a group. All else is as in reduce.cuh, but for one thing: neighbouring
// threads fold neighbouring groups, so that a warp's stores would have gaps, which a link between GPUs pays for. The
// folded shard therefore replaces, in this rank's ring, what a peer had sent for it, and is sent on from there, pack
// by pack.
#pragma once
#include "reduce.cuh"

constexpr u32 greatest_common_divisor(u32 a, u32 b) { return b == 0 ? a : greatest_common_divisor(b, a % b); }

template <class T, class Op>
struct GroupFold {
    static constexpr u32 kNbytes = kPackNbytes / greatest_common_divisor(kPackNbytes, sizeof(T)) * sizeof(T);
    static constexpr u32 kPacks = kNbytes / kPackNbytes;
    static constexpr u32 kElements = kNbytes / sizeof(T);
    T folded[kElements];

    __device__ void add(int rank, const Pack (&packs)[kPacks]) {
        T elements[kElements];
        memcpy(elements, packs, kNbytes);
#pragma unroll
        for (u32 i = 0; i < kElements; ++i)
            folded[i] = rank == 0 ? elements[i] : Op::combine(folded[i], elements[i]);
    }

    __device__ void result(int size, Pack (&packs)[kPacks]) const {
        T elements[kElements];
#pragma unroll
        for (u32 i = 0; i < kElements; ++i) elements[i] = Op::finish(folded[i], size);
        memcpy(packs, elements, kNbytes);
    }
};

__device__ __forceinline__ u64 groups_in(u64 nbytes, u32 group_nbytes) {
    return (nbytes + group_nbytes - 1) / group_nbytes;
}

// What block `part` of `parts` folds of a message: an equal share in whole groups but for the end.
__device__ __forceinline__ Shard group_part(const ReduceArgs& args, u32 group_nbytes) {
    const u64 each = (groups_in(args.nbytes, group_nbytes) + gridDim.x - 1) / gridDim.x * group_nbytes;
    const u64 begin = smaller(each * blockIdx.x, args.nbytes);
    return Shard{args.send + begin, args.recv + begin, smaller(each, args.nbytes - begin)};
}

// The block's part in tiles of one shard a rank. Reduce_scatter_block has a part of every rank's block.
struct GroupTiling {
    Shard part;
    u64 shard_nbytes, stride;  // stride: of the ranks' blocks; 0: the ranks share one part
    int size;

    __device__ GroupTiling(const ReduceArgs& args, const Chunks& chunks, u32 group_nbytes, bool scatters)
        : part(group_part(args, group_nbytes)), stride(scatters ? args.nbytes : 0), size(args.team.size) {
        const u64 longest = chunks.nbytes / group_nbytes * group_nbytes;
        const u64 share = (groups_in(part.nbytes, group_nbytes) + size - 1) / size * group_nbytes;
        shard_nbytes = scatters ? longest : smaller(share, longest);
    }
    __device__ u64 tile_nbytes() const { return stride ? shard_nbytes : shard_nbytes * size; }
    __device__ u64 tiles() const { return part.nbytes ? (part.nbytes + tile_nbytes() - 1) / tile_nbytes() : 0; }
    __device__ Shard shard(u64 tile, int rank) const {
        const u64 begin = smaller(tile * tile_nbytes() + (stride ? 0 : rank * shard_nbytes), part.nbytes);
        return Shard{part.send + rank * stride + begin, part.recv + begin, smaller(shard_nbytes, part.nbytes - begin)};
    }
};

// Everyone who receives gets everything as packets, and folds it. `receiver`: a rank, kToAll, or kToNone, which
// means that rank r gets and folds block r.
template <class T, class Op>
__device__ void records_one_shot(const ReduceArgs& args, int receiver) {
    using Folded = GroupFold<T, Op>;
    Channel channel(args.team);
    Packets packets(channel);
    const int me = args.team.rank;
    const Shard part = group_part(args, Folded::kNbytes);
    const u64 stride = receiver == kToNone ? args.nbytes : 0;
    bool ok = packets.await_free();
    for (u64 i = threadIdx.x; ok && i < packs_in(part.nbytes); i += blockDim.x)
        for (int j = 0; j < args.team.size - 1; ++j) {
            const int peer = channel.peer(j);
            if (receiver >= 0 && receiver != peer) continue;
            packets.send(packets.outbox(peer), u32(i) * 2, load_pack(part.send + peer * stride, i, part.nbytes));
        }
    ok = channel.everyone(ok);  // in place, a group may lie over packs that other threads send
    const bool receives = receiver < 0 || receiver == me;
    for (u64 g = threadIdx.x; ok && receives && g < groups_in(part.nbytes, Folded::kNbytes); g += blockDim.x) {
        Folded fold;
        Pack packs[Folded::kPacks];
#pragma unroll 1
        for (int rank = 0; ok && rank < args.team.size; ++rank) {
#pragma unroll
            for (u32 p = 0; p < Folded::kPacks; ++p) {
                const u64 i = g * Folded::kPacks + p;
                packs[p] = Pack{0, 0};
                if (!ok || i >= packs_in(part.nbytes)) continue;
                if (rank == me) packs[p] = load_pack(part.send + me * stride, i, part.nbytes);
                else ok = packets.receive(rank, u32(i) * 2, packs[p]);
            }
            if (ok) fold.add(rank, packs);
        }
        if (!ok) break;
        fold.result(args.team.size, packs);
#pragma unroll
        for (u32 p = 0; p < Folded::kPacks; ++p) store_pack(part.recv, g * Folded::kPacks + p, part.nbytes, packs[p]);
    }
    channel.leave(ok && receiver < 0 && part.nbytes > 0);
}

template <class T, class Op>
struct RecordsTwoShot {
    using Folded = GroupFold<T, Op>;
    Channel& channel;
    Chunks chunks;
    const GroupTiling tiling;
    const int receiver;  // a rank, kToAll or kToNone

    __device__ int me() const { return channel.team.rank; }
    __device__ int peers() const { return channel.team.size - 1; }
    __device__ bool receives(int rank) const { return receiver == kToAll || receiver == rank; }
    __device__ bool keeps() const { return receiver == kToNone || receives(me()); }  // what it has folded
    __device__ bool has(u64 tile) const { return tile < tiling.tiles(); }  // also false for one before the first

    __device__ bool run() {
        const u64 tiles = tiling.tiles();
        for (u64 step = 0; tiles != 0 && step < tiles + 2; ++step)
            if (!move(step, step - 1, step - 2)) return false;
        return true;
    }

    // One step: scatter one tile, fold an earlier one and send it on, collect a still earlier one.
    __device__ bool move(u64 scattered, u64 folded, u64 collected) {
        const bool ready = chunks.await(4, [&](u32 kind, int peer) {
            if (kind == 0) return !has(scattered) || chunks.wait_for_place(0, peer, scattered);
            if (kind == 1) return !has(folded) || chunks.wait_for_chunk(0, peer, folded);
            if (kind == 2) return !has(folded) || !receives(peer) || chunks.wait_for_place(1, peer, folded);
            return !has(collected) || !receives(me()) || chunks.wait_for_chunk(1, peer, collected);
        });
        if (!ready) return false;
        const u32 parts = peers() > 0 ? peers() : 1;
        const Crew crew(parts + 2 * peers());
        for (u32 job = crew.first_job; job < parts + 2 * peers(); job += crew.next_job) {
            if (job < parts) fold(crew, folded, job, parts);
            else if (job < parts + peers()) scatter(crew, scattered, channel.peer(job - parts));
            else collect(crew, collected, channel.peer(job - parts - peers()));
        }
        __syncthreads();
        forward(folded);
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

    // Where the folded shard of a tile lies until it has been sent on: where the next rank's contribution was.
    __device__ Pack* folded_place(u64 tile) const { return chunks.place(0, me(), channel.peer(0), tile); }

    // Part `part` of `parts` of this rank's shard. The thread that replaces a group has read it.
    __device__ void fold(const Crew& crew, u64 tile, u32 part, u32 parts) const {
        if (!has(tile) || peers() == 0) return;
        const Shard shard = tiling.shard(tile, me());
        const u32 groups = u32(groups_in(shard.nbytes, Folded::kNbytes)), each = (groups + parts - 1) / parts;
        const u32 end = u32(smaller(u64(each) * (part + 1), groups));
#pragma unroll 1
        for (u32 g = each * part + crew.member; g < end; g += crew.members) {
            Folded fold;
            Pack packs[Folded::kPacks];
#pragma unroll 1
            for (int rank = 0; rank < channel.team.size; ++rank) {
#pragma unroll
                for (u32 p = 0; p < Folded::kPacks; ++p) packs[p] = contribution(tile, shard, rank, g * Folded::kPacks + p);
                fold.add(rank, packs);
            }
            fold.result(channel.team.size, packs);
#pragma unroll
            for (u32 p = 0; p < Folded::kPacks; ++p)
                if (g * Folded::kPacks + p < packs_in(shard.nbytes)) put_pack(folded_place(tile) + g * Folded::kPacks + p, packs[p]);
        }
    }

    __device__ Pack contribution(u64 tile, const Shard& shard, int rank, u64 i) const {
        if (i >= packs_in(shard.nbytes)) return Pack{0, 0};
        return rank == me() ? load_pack(shard.send, i, shard.nbytes) : get_pack(chunks.place(0, me(), rank, tile) + i);
    }

    // All threads, after a barrier: the folded shard goes to those who receive it.
    __device__ void forward(u64 tile) const {
        if (!has(tile)) return;
        const Shard shard = tiling.shard(tile, me());
        const Crew crew(peers() + 1);
        for (u32 job = crew.first_job; job < u32(peers()) + 1; job += crew.next_job) {
            const bool own = job == u32(peers());
            const int rank = own ? me() : channel.peer(job);
            if (own ? !keeps() : !receives(rank)) continue;
            Pack* place = own ? nullptr : chunks.place(1, rank, me(), tile);
            move_packs(
                crew.member, packs_in(shard.nbytes), crew.members,
                [&](u64 i) { return peers() ? get_pack(folded_place(tile) + i) : load_pack(shard.send, i, shard.nbytes); },
                [&](u64 i, Pack pack) { own ? store_pack(shard.recv, i, shard.nbytes, pack) : put_pack(place + i, pack); });
        }
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

template <class T, class Op>
__device__ void records_two_shot(const ReduceArgs& args, int receiver) {
    Channel channel(args.team);
    Chunks chunks(channel);
    const GroupTiling tiling(args, chunks, GroupFold<T, Op>::kNbytes, receiver == kToNone);
    RecordsTwoShot<T, Op> two_shot{channel, chunks, tiling, receiver};
    channel.leave(two_shot.run() && two_shot.has(0));
}
