// Reductions of elements that do not divide a pack, such as records: in whole groups (groups.cuh), otherwise as reduce.cuh.
#pragma once
#include "reduction/zero_copy.cuh"

// This block's part of a vector: an equal share in whole groups, but for the end.
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
        const int sharers = scatters ? 1 : size;
        shard_nbytes = smaller((groups_in(part.nbytes, group_nbytes) + sharers - 1) / sharers * group_nbytes, longest);
    }
    __device__ u64 tile_nbytes() const { return stride ? shard_nbytes : shard_nbytes * size; }
    __device__ u64 tiles() const { return part.nbytes ? (part.nbytes + tile_nbytes() - 1) / tile_nbytes() : 0; }
    __device__ Shard shard(u64 tile, int rank) const {
        const u64 begin = smaller(tile * tile_nbytes() + (stride ? 0 : rank * shard_nbytes), part.nbytes);
        const char* from = part.send + rank * stride + begin;
        return Shard{from, in_place ? const_cast<char*>(from) : part.recv + begin, smaller(shard_nbytes, part.nbytes - begin)};
    }
};

// Every receiver gets all contributions as packets, and folds them. `receiver`: a rank, kToAll, or kToNone, which means that
// rank r receives and folds block r.
template <class T, class Op>
__device__ void records_one_shot(const ReduceArgs& args, int receiver) {
    using Folded = GroupFold<T, Op>;
    Channel channel(args.team);
    Packets packets(channel);
    const int me = args.team.rank;
    const Shard part = group_part(args, Folded::kNbytes);
    const u64 stride = receiver == kToNone ? args.nbytes : 0;
    bool ok = channel.await_slots();
    for (u64 i = threadIdx.x; ok && i < packs_in(part.nbytes); i += blockDim.x)
        for (int j = 0; j < args.team.size - 1; ++j) {
            const int peer = channel.peer(j);
            if (receiver >= 0 && receiver != peer) continue;
            packets.send(packets.outbox(peer), u32(i) * 2, load_pack(part.send + peer * stride, i, part.nbytes));
        }
    ok = channel.everyone(ok);  // in place, a group may overlap packs that other threads send
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
    channel.leave(ok && receiver < 0 && part.nbytes > 0, [&](int) { return ok && receives; });
}

// A long reduction.
template <class T, class Op>
__device__ void records_two_shot(const ReduceArgs& args, int receiver) {
    Channel channel(args.team);
    const auto tiling_of = [&](u64 most) { return GroupTiling(args, most, kGroupNbytes<T>, receiver == kToNone); };
    const bool ok = reduce_long<T, Op>(channel, args, receiver, tiling_of);
    const GroupTiling whole = tiling_of(~0ull);
    if (ok && whole.in_place) move_result(whole.shard(0, args.team.rank), whole.part.recv);
    channel.leave(ok);
}
