// Reduce_scatter_block: rank r's recvbuf becomes block r of the fold of all ranks' sendbufs, in rank order.
//
//   reduce_scatter_block_one_shot        small: block r goes to rank r as packets
//   reduce_scatter_block_one_shot_lines  medium: the same as lines, row by row
//   reduce_scatter_block_two_shot        large: the same in chunks; the second shot has no receiver
//
// In place: send == recv, the whole vector; the result then is at its beginning. In two shots it replaces this rank's block
// first, which no other rank reads, and moves after all ranks have read the beginning.
// Launch: one block for each channel in use; kFoldThreads threads fold packets, kMaxThreads lines and chunks.
#include "reduction/zero_copy.cuh"

// Every rank's block of the vector is cut alike: this grid block's part of it, in shards of one chunk.
struct BlockTiling {
    const char* send;
    char* recv;
    const bool in_place;
    u64 block_nbytes, nbytes, shard_nbytes;

    __device__ BlockTiling(const ReduceArgs& args, u64 most) : in_place(args.send == args.recv), block_nbytes(args.nbytes) {
        const Part part(args.nbytes, gridDim.x, blockIdx.x);
        send = args.send + part.begin;
        recv = args.recv + part.begin;
        nbytes = part.nbytes;
        shard_nbytes = nbytes < most ? nbytes : most;
    }
    __device__ u64 tiles() const { return nbytes == 0 ? 0 : (nbytes + shard_nbytes - 1) / shard_nbytes; }
    __device__ Shard shard(u64 tile, int rank) const {
        const u64 begin = tile * shard_nbytes;
        const char* from = send + rank * block_nbytes + begin;
        return Shard{from, in_place ? const_cast<char*>(from) : recv + begin, smaller(shard_nbytes, nbytes - begin)};
    }
};

template <class T, class Op>
__global__ void __launch_bounds__(kFoldThreads, 1) reduce_scatter_block_one_shot(const __grid_constant__ ReduceArgs args) {
    const Team& team = args.team;
    const Part part(args.nbytes, gridDim.x, blockIdx.x);
    const char* send = args.send + part.begin;
    const Crew crew(u32(team.size - 1));
    await_previous(u64(send) ^ part.nbytes ^ crew.members ^ Channel::dependency(team));
    Channel channel(team);
    Packets packets(channel);
    bool ok = channel.await_slots();
    for (u32 j = crew.first_job; ok && j < u32(team.size - 1); j += crew.next_job) {
        const int peer = channel.peer(int(j));
        for (u64 i = crew.member; i < packs_in(part.nbytes); i += crew.members)
            packets.send(packets.outbox(peer), u32(i) * 2, load_pack(send + peer * args.nbytes, i, part.nbytes));
    }
    __syncthreads();  // in place a result replaces what another thread sends
    for (u64 i = threadIdx.x; ok && i < packs_in(part.nbytes); i += blockDim.x) {
        Pack result;
        ok = fold_packets<T, Op>(packets, send + team.rank * args.nbytes, i, part.nbytes, result);
        if (ok) store_pack(args.recv + part.begin, i, part.nbytes, result);
    }
    channel.leave(ok && part.nbytes > 0, [&](int) { return ok; });
}

// A warp has the same rows of all blocks, and sends a row before it folds the previous one: both are in flight at the same
// time, and in place a row is replaced after it has been sent (4 H200, docs/design_notes.md, "A poll for arrived
// packets is short").
template <class T, class Op>
__global__ void __launch_bounds__(kMaxThreads, 2) reduce_scatter_block_one_shot_lines(const __grid_constant__ ReduceArgs args) {
    const Team& team = args.team;
    const Part part(args.nbytes, gridDim.x, blockIdx.x);
    const char* send = args.send + part.begin;
    await_previous(u64(send) ^ part.nbytes ^ Channel::dependency(team));
    Channel channel(team);
    Lines lines(channel);
    const u32 rows = rows_in(part.nbytes), warps = blockDim.x / 32;
    bool ok = channel.await_slots();
    for (u32 row = threadIdx.x / 32; ok && row < rows + warps; row += warps) {
        if (row < rows) lines.send_rows(row, part.nbytes, [&](int peer) { return send + peer * args.nbytes; });
        if (row < warps) continue;
        Pack result;
        ok = fold_lines<T, Op>(lines, send + team.rank * args.nbytes, row - warps, part.nbytes, result);
        if (ok) lines.store(args.recv + part.begin, row - warps, part.nbytes, result);
    }
    channel.leave(ok && part.nbytes > 0);
}

template <class T, class Op>
__global__ void __launch_bounds__(kMaxThreads, 1) reduce_scatter_block_two_shot(const __grid_constant__ ReduceArgs args) {
    Channel channel(args.team);
    const auto tiling_of = [&](u64 most) { return BlockTiling(args, most); };
    const BlockTiling whole(args, ~0ull);
    channel.leave(reduce_long<T, Op>(channel, args, kToNone, tiling_of, whole.in_place ? whole.recv : nullptr));
}
