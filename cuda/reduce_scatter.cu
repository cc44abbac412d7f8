// Reduce_scatter: rank r's recvbuf becomes block r of the fold of all ranks' sendbufs, in rank order; blocks are of any
// length, which all ranks know.
//
//   reduce_scatter_one_shot  small: block r goes to rank r as packets
//   reduce_scatter_two_shot  large: the same in chunks, where the second shot has no receiver, or without a copy
//
// In place: recv is this rank's own block of send, which nobody else is sent. At the end the result is moved from there
// to the beginning of send, where MPI wants it; put there at once, it would replace what other blocks of the grid have
// yet to send.
#include "blocks.cuh"
#include "zero_copy.cuh"

// Each rank's block is cut into as many parts as the grid has blocks; this grid block's part of each, in shards of at
// most `most` bytes. There are as many tiles as the longest part needs.
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

// What this rank's grid block `block` moves of the result in place. Where the old and the new place overlap, block 0 goes
// through it alone, in ascending order.
__device__ Part part_to_move(const BlocksArgs& args, u32 block) {
    const u64 begin = args.begin_of[args.team.rank], nbytes = args.nbytes_of[args.team.rank];
    if (begin >= nbytes) return Part(nbytes, gridDim.x, block);
    return Part(block == 0 ? nbytes : 0, 1, 0);
}

// The blocks of this rank's grid arrive, and those that have something to move wait until all have. False: leave.
__device__ bool meet_grid(Channel& channel, const BlocksArgs& args) {
    const Team& team = args.team;
    const auto wait = [&](u32 block, u32 ChannelControl::*word) {
        const u32* waited = &(channel_control(team, team.rank, int(block))->*word);
        return wait_for(team, waited, Awaited{channel.epoch, int(block), team.rank, 1, 0});
    };
    __syncthreads();
    if (blockIdx.x != 0) {
        if (threadIdx.x == 0) st_release_sys(&channel.mine->arrived, 1u);
        if (part_to_move(args, blockIdx.x).nbytes == 0) return true;
        const bool ok = channel.everyone(threadIdx.x != 0 || wait(blockIdx.x, &ChannelControl::released));
        if (threadIdx.x == 0) st_relaxed_sys(&channel.mine->released, 0u);
        return ok;
    }
    bool ok = true;
    for (u32 block = 1 + threadIdx.x; ok && block < gridDim.x; block += blockDim.x)
        ok = wait(block, &ChannelControl::arrived);
    ok = channel.everyone(ok);
    for (u32 block = 1 + threadIdx.x; block < gridDim.x; block += blockDim.x) {
        ChannelControl* control = channel_control(team, team.rank, int(block));
        st_relaxed_sys(&control->arrived, 0u);
        if (part_to_move(args, block).nbytes > 0) st_release_sys(&control->released, 1u);
    }
    return ok;
}

// In place: the result goes from this rank's own block to the beginning of the buffer. All loads of a stretch come before
// its stores. False: leave.
__device__ bool move_down(Channel& channel, const BlocksArgs& args) {
    const u64 begin = args.begin_of[args.team.rank];
    if (begin == 0 || args.recv != args.send + begin) return true;
    if (!meet_grid(channel, args)) return false;
    const Part part = part_to_move(args, blockIdx.x);
    const char* from = args.recv + part.begin;
    char* to = args.recv - begin + part.begin;
    constexpr int kUnroll = 4;
    for (u64 first = 0; first < packs_in(part.nbytes); first += kUnroll * blockDim.x) {
        Pack packs[kUnroll];
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
            const u64 i = first + u * blockDim.x + threadIdx.x;
            packs[u] = i < packs_in(part.nbytes) ? load_pack(from, i, part.nbytes) : Pack{0, 0};
        }
        __syncthreads();
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) store_pack(to, first + u * blockDim.x + threadIdx.x, part.nbytes, packs[u]);
        __syncthreads();
    }
    return true;
}

template <class T, class Op>
__global__ void __launch_bounds__(kFoldThreads, 1) reduce_scatter_one_shot(const __grid_constant__ BlocksArgs args) {
    const Team& team = args.team;
    Channel channel(team);
    Packets packets(channel);
    bool ok = packets.await_free();
    const Crew crew(team.size - 1);
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
    channel.leave(move_down(channel, args) && ok && mine.nbytes > 0);
}

template <class T, class Op>
__global__ void __launch_bounds__(kMaxThreads, 1) reduce_scatter_two_shot(const __grid_constant__ BlocksArgs args) {
    Channel channel(args.team);
    const auto tiling_of = [&](u64 most) { return BlocksTiling(args, most); };
    const bool heard = reduce_long<T, Op>(channel, args, kToNone, tiling_of);
    channel.leave(move_down(channel, args) && heard);
}
