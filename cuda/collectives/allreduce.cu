// Allreduce: every rank's recvbuf becomes the fold of all ranks' sendbufs, in rank order.
//
//   allreduce_one_shot          small: every rank sends everything to every rank as packets, and folds everything
//   allreduce_two_shot_lines    medium: every rank folds a shard; contributions and results travel as lines
//   allreduce_two_shot          large: the same as a pipeline of chunks, or without a copy (zero_copy.cuh)
//
// All forms give the same bits (reduce_ops.cuh). In place: send == recv.
// Packets and lines carry their own flags. They are stored after `await_slots` has shown that their slots were read.
// Launch: one block for each channel in use; kFoldThreads threads fold packets, kMaxThreads lines and chunks.
#include "reduction/zero_copy.cuh"

template <class T, class Op>
__global__ void __launch_bounds__(kFoldThreads, 1) allreduce_one_shot(const __grid_constant__ ReduceArgs args) {
    const Part part(args.nbytes, gridDim.x, blockIdx.x);
    const char* send = args.send + part.begin;
    await_previous(u64(send) ^ part.nbytes ^ Channel::dependency(args.team));
    const Pack first = load_first(send, part.nbytes);
    Channel channel(args.team);
    Packets packets(channel);
    bool ok = channel.await_slots();
    for (u64 i = threadIdx.x; ok && i < packs_in(part.nbytes); i += blockDim.x) {
        const Pack pack = i == threadIdx.x ? first : load_pack(send, i, part.nbytes);
        for (int j = 0; j < args.team.size - 1; ++j) packets.send(packets.outbox(channel.peer(j)), u32(i) * 2, pack);
    }
    for (u64 i = threadIdx.x; ok && i < packs_in(part.nbytes); i += blockDim.x) {
        Pack result;
        ok = fold_packets<T, Op>(packets, send, i, part.nbytes, result);
        if (ok) store_pack(args.recv + part.begin, i, part.nbytes, result);
    }
    channel.leave(ok && part.nbytes > 0, [&](int) { return ok; });
}

template <class T, class Op>
__global__ void __launch_bounds__(kMaxThreads, 2) allreduce_two_shot_lines(const __grid_constant__ ReduceArgs args) {
    const VectorTiling tiling(args, ~0ull);
    const Crew crew(u32(args.team.size - 1));
    await_previous(tiling.shard_nbytes ^ crew.members ^ Channel::dependency(args.team));
    Channel channel(args.team);
    Lines lines(channel);
    channel.leave(two_shot_lines<T, Op>(lines, tiling, crew, kToAll));
}

template <class T, class Op>
__global__ void __launch_bounds__(kMaxThreads, 1) allreduce_two_shot(const __grid_constant__ ReduceArgs args) {
    Channel channel(args.team);
    const auto tiling_of = [&](u64 most) { return VectorTiling(args, most); };
    channel.leave(reduce_long<T, Op>(channel, args, kToAll, tiling_of));
}
