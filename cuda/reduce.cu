// Reduce: root's recvbuf becomes the fold of all ranks' sendbufs, in rank order.
//
//   reduce_one_shot  small: everyone sends everything to root as packets
//   reduce_two_shot  large: every rank but root folds a shard of each tile and sends it to root
//
// In place at root: send == recv. Elsewhere recv is not used.
#include "zero_copy.cuh"

template <class T, class Op>
__global__ void __launch_bounds__(kFoldThreads, 1) reduce_one_shot(const __grid_constant__ ReduceArgs args) {
    Channel channel(args.team);
    Packets packets(channel);
    const Part part(args.nbytes, gridDim.x, blockIdx.x);
    const char* send = args.send + part.begin;
    const bool is_root = args.team.rank == args.root;
    bool ok = packets.await_free();
    for (u64 i = threadIdx.x; ok && i < packs_in(part.nbytes); i += blockDim.x) {
        if (is_root) {
            Pack result;
            ok = fold_packets<T, Op>(packets, send, i, part.nbytes, result);
            if (ok) store_pack(args.recv + part.begin, i, part.nbytes, result);
        } else {
            packets.send(packets.outbox(args.root), u32(i) * 2, load_pack(send, i, part.nbytes));
        }
    }
    channel.leave();
}

template <class T, class Op>
__global__ void __launch_bounds__(kMaxThreads, 1) reduce_two_shot(const __grid_constant__ ReduceArgs args) {
    Channel channel(args.team);
    const auto tiling_of = [&](u64 most) { return VectorTiling(args, most, args.root); };
    channel.leave(reduce_long<T, Op>(channel, args, args.root, tiling_of));
}
