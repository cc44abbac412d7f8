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
    bool in_place;  // as in reduce_scatter_block.cu: the result replaces this rank's block first

    __device__ GroupTiling(const ReduceArgs& args, u64 most, u32 group_nbytes, bool scatters)
        : part(group_part(args, group_nbytes)), stride(scatters ? args.nbytes : 0), size(args.team.size),
          in_place(scatters && args.send == args.recv) {
        const u64 longest = most / group_nbytes * group_nbytes;
        const u64 share = (groups_in(part.nbytes, group_nbytes) + size - 1) / size * group_nbytes;
        shard_nbytes = scatters ? longest : smaller(share, longest);
    }
    __device__ u64 tile_nbytes() const { return stride ? shard_nbytes : shard_nbytes * size; }
    __device__ u64 tiles() const { return part.nbytes ? (part.nbytes + tile_nbytes() - 1) / tile_nbytes() : 0; }
    __device__ Shard shard(u64 tile, int rank) const {
        const u64 begin = smaller(tile * tile_nbytes() + (stride ? 0 : rank * shard_nbytes), part.nbytes);
        const char* from = part.send + rank * stride + begin;
        return Shard{from, in_place ? const_cast<char*>(from) : part.recv + begin, smaller(shard_nbytes, part.nbytes - begin)};
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
struct RecordsTwoShot : TwoShot<T, Op, GroupTiling> {
    using Folded = GroupFold<T, Op>;

    __device__ bool run_records() {
        return this->run([&](const Crew& crew, u64 tile) { return fold_records(crew, tile); });
    }

    // This rank's shard: waits for what all ranks contribute, and for places for the result. A call for each tile costs
    // nothing, and leaves the registers to the fold.
    __device__ __noinline__ bool fold_records(const Crew& crew, u64 tile) {
        const int peer = int(crew.member);
        const bool is_peer = this->channel.is_peer(peer), receives = this->receives(peer);
        const bool ready = !is_peer || (this->chunks.wait_for_chunk(0, peer, tile) &&
                                        (!receives || this->chunks.wait_for_place(1, peer, tile)));
        if (!crew.everyone(ready)) return false;
        const Shard shard = this->tiling.shard(tile, this->me());
#pragma unroll 1
        for (u64 g = crew.member; g < groups_in(shard.nbytes, Folded::kNbytes) && this->peers() > 0; g += crew.members)
            fold_group(tile, shard, g);
        crew.everyone(true);
        for (int j = 0; j < this->peers(); ++j)
            if (this->receives(this->channel.peer(j))) forward(crew, tile, shard, this->channel.peer(j));
        if (this->receiver == kToNone || this->receives(this->me())) keep(crew, tile, shard);
        crew.everyone(true);
        if (!is_peer) return true;
        fence_sys();
        this->chunks.signal_read(0, peer, tile);
        if (receives) this->chunks.signal_stored(1, peer, tile);
        return true;
    }

  private:
    // Where a folded shard lies until it has been sent on: where the next rank's contribution was.
    __device__ Pack* folded_place(u64 tile) const {
        return this->chunks.place(0, this->me(), this->channel.peer(0), tile);
    }

    // The thread that replaces a group has read it.
    __device__ void fold_group(u64 tile, const Shard& shard, u64 g) const {
        Folded fold;
        Pack packs[Folded::kPacks];
#pragma unroll 1
        for (int rank = 0; rank < this->channel.team.size; ++rank) {
#pragma unroll
            for (u32 p = 0; p < Folded::kPacks; ++p) packs[p] = contribution(tile, shard, rank, g * Folded::kPacks + p);
            fold.add(rank, packs);
        }
        fold.result(this->channel.team.size, packs);
#pragma unroll
        for (u32 p = 0; p < Folded::kPacks; ++p) {
            const u64 i = g * Folded::kPacks + p;
            if (i < packs_in(shard.nbytes)) put_pack(folded_place(tile) + i, packs[p]);
        }
    }

    __device__ Pack contribution(u64 tile, const Shard& shard, int rank, u64 i) const {
        if (i >= packs_in(shard.nbytes)) return Pack{0, 0};
        if (rank == this->me()) return load_pack(shard.send, i, shard.nbytes);
        return get_pack(this->chunks.place(0, this->me(), rank, tile) + i);
    }

    __device__ void forward(const Crew& crew, u64 tile, const Shard& shard, int peer) const {
        Pack* place = this->chunks.place(1, peer, this->me(), tile);
        move_packs(
            crew.member, packs_in(shard.nbytes), crew.members, [&](u64 i) { return get_pack(folded_place(tile) + i); },
            [&](u64 i, Pack pack) { put_pack(place + i, pack); });
    }

    __device__ void keep(const Crew& crew, u64 tile, const Shard& shard) const {
        const bool alone = this->peers() == 0;
        move_packs(
            crew.member, packs_in(shard.nbytes), crew.members,
            [&](u64 i) { return alone ? load_pack(shard.send, i, shard.nbytes) : get_pack(folded_place(tile) + i); },
            [&](u64 i, Pack pack) { store_pack(shard.recv, i, shard.nbytes, pack); });
    }
};

template <class T, class Op>
__device__ void records_two_shot(const ReduceArgs& args, int receiver) {
    Channel channel(args.team);
    const Chunks chunks(channel);
    const GroupTiling tiling(args, chunks.nbytes, GroupFold<T, Op>::kNbytes, receiver == kToNone);
    RecordsTwoShot<T, Op> two_shot{{channel, chunks, tiling, receiver}};
    const bool ok = two_shot.run_records() && tiling.tiles() > 0;
    const char* own = tiling.part.send + args.team.rank * tiling.stride;
    if (ok && tiling.in_place) move_result(Shard{own, const_cast<char*>(own), tiling.part.nbytes}, tiling.part.recv);
    channel.leave(ok);
}
