// Reduce_scatter: rank r's recvbuf becomes block r of the fold of all ranks' sendbufs, in rank order; blocks are of any
// length, and all ranks have all lengths.
//
//   reduce_scatter_one_shot  small: block r goes to rank r as packets
//   reduce_scatter_two_shot  large: the same in chunks, where the second shot has no receiver, or without a copy
//
// In place at the beginning of send works for rank 0 alone, whose own block that is: elsewhere the result would replace what
// other blocks of the grid have yet to send. The caller gives another place, and copies.
// Launch: one block for each channel in use; kFoldThreads threads in one shot, kMaxThreads in two.
#include "exchange/blocks.cuh"
#include "reduction/zero_copy.cuh"

// Each rank's block is cut into a part for each block of the grid; this grid block's part of each, in shards of at most
// `most` bytes. There are as many tiles as the longest part needs.
struct BlocksTiling {
    const BlocksArgs& args;
    u64 shard_nbytes, longest;

    __device__ BlocksTiling(const BlocksArgs& args, u64 most) : args(args), longest(0) {
        for (int rank = 0; rank < args.team.size; ++rank)
            if (part(rank).nbytes > longest) longest = part(rank).nbytes;
        shard_nbytes = smaller(longest, most);
    }
    __device__ Part part(int rank) const { return Part(args.nbytes_of[rank], gridDim.x, blockIdx.x); }
    __device__ u64 tiles() const { return longest == 0 ? 0 : (longest + shard_nbytes - 1) / shard_nbytes; }
    __device__ Shard shard(u64 tile, int rank) const {
        const Part mine = part(rank);
        const u64 begin = smaller(tile * shard_nbytes, mine.nbytes);
        const char* send = args.send + args.begin_of[rank] + mine.begin + begin;
        return Shard{send, args.recv + mine.begin + begin, smaller(shard_nbytes, mine.nbytes - begin)};
    }
};

template <class T, class Op>
__global__ void __launch_bounds__(kFoldThreads, 1) reduce_scatter_one_shot(const __grid_constant__ BlocksArgs args) {
    const Team& team = args.team;
    const Crew crew(team.size - 1);
    await_previous(crew.members ^ Channel::dependency(team));
    Channel channel(team);
    Packets packets(channel);
    bool ok = channel.await_slots();
    for (u32 j = crew.first_job; ok && j < u32(team.size - 1); j += crew.next_job) {
        const int peer = channel.peer(int(j));
        const Part part(args.nbytes_of[peer], gridDim.x, blockIdx.x);
        const char* send = args.send + args.begin_of[peer] + part.begin;
        for (u64 i = crew.member; i < packs_in(part.nbytes); i += crew.members)
            packets.send(packets.outbox(peer), u32(i) * 2, load_pack(send, i, part.nbytes));
    }
    const Part mine(args.nbytes_of[team.rank], gridDim.x, blockIdx.x);
    const char* send = args.send + args.begin_of[team.rank] + mine.begin;
    for (u64 i = threadIdx.x; ok && i < packs_in(mine.nbytes); i += blockDim.x) {
        Pack result;
        ok = fold_packets<T, Op>(packets, send, i, mine.nbytes, result);
        if (ok) store_pack(args.recv + mine.begin, i, mine.nbytes, result);
    }
    channel.leave(ok && mine.nbytes > 0, [&](int) { return ok; });
}

template <class T, class Op>
__global__ void __launch_bounds__(kMaxThreads, 1) reduce_scatter_two_shot(const __grid_constant__ BlocksArgs args) {
    Channel channel(args.team);
    const auto tiling_of = [&](u64 most) { return BlocksTiling(args, most); };
    channel.leave(reduce_long<T, Op>(channel, args, kToNone, tiling_of));
}
