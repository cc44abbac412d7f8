// Reduce: root's recvbuf becomes the fold of all ranks' sendbufs, in rank order.
//
//   reduce_one_shot          small: every rank sends everything to root as packets, and root folds
//   reduce_two_shot_lines    medium: every rank but root folds a shard; contributions and results travel as lines
//   reduce_two_shot          large: the same as a pipeline of chunks, or without a copy (zero_copy.cuh)
//   reduce_two_shot_to_root  the same for two ranks, where root folds all in one shot
//
// In place at root: send == recv. recv is used at root only.
// Launch: one block for each channel in use; kFoldThreads threads fold packets, kMaxThreads lines and chunks.
#include "reduction/zero_copy.cuh"

template <class T, class Op>
__global__ void __launch_bounds__(kFoldThreads, 1) reduce_one_shot(const __grid_constant__ ReduceArgs args) {
    const Part part(args.nbytes, gridDim.x, blockIdx.x);
    const char* send = args.send + part.begin;
    await_previous(u64(send) ^ part.nbytes ^ Channel::dependency(args.team));
    const Pack first = load_first(send, part.nbytes);
    Channel channel(args.team);
    Packets packets(channel);
    const bool is_root = args.team.rank == args.root;
    bool ok = channel.await_slots();
    for (u64 i = threadIdx.x; ok && i < packs_in(part.nbytes); i += blockDim.x) {
        if (is_root) {
            Pack result;
            ok = fold_packets<T, Op>(packets, send, i, part.nbytes, result);
            if (ok) store_pack(args.recv + part.begin, i, part.nbytes, result);
        } else {
            packets.send(packets.outbox(args.root), u32(i) * 2, i == threadIdx.x ? first : load_pack(send, i, part.nbytes));
        }
    }
    channel.leave(false, [&](int) { return ok && is_root; });
}

template <class T, class Op>
__global__ void __launch_bounds__(kMaxThreads, 2) reduce_two_shot_lines(const __grid_constant__ ReduceArgs args) {
    const VectorTiling tiling(args, ~0ull, args.root);
    const Crew crew(u32(args.team.size - 1));
    await_previous(tiling.shard_nbytes ^ crew.members ^ Channel::dependency(args.team));
    Channel channel(args.team);
    Lines lines(channel);
    channel.leave(two_shot_lines<T, Op>(lines, tiling, crew, args.root));
}

template <class T, class Op>
__global__ void __launch_bounds__(kMaxThreads, 1) reduce_two_shot(const __grid_constant__ ReduceArgs args) {
    Channel channel(args.team);
    const auto tiling_of = [&](u64 most) { return VectorTiling(args, most, args.root); };
    channel.leave(reduce_long<T, Op, kAllButRoot>(channel, args, args.root, tiling_of));
}

template <class T, class Op>
__global__ void __launch_bounds__(kMaxThreads, 1) reduce_two_shot_to_root(const __grid_constant__ ReduceArgs args) {
    Channel channel(args.team);
    const auto tiling_of = [&](u64 most) { return VectorTiling(args, most, args.root); };
    channel.leave(reduce_long<T, Op, kRootAlone>(channel, args, kToNone, tiling_of));
}
