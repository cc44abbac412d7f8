// Allgather and Alltoall of the results of a row transform, which may be of another element type than the arguments.
//
// A message has the elements that arrive. Allgather first stores its own block in its place in recv, and sends it from
// there, because to transform it for every rank would take longer than to read it. Alltoall transforms packs when it
// sends them: a span's address is its offset in the data. So packets, chunks and windows are as in exchange.cuh.
// Launch: one block for each channel in use, up to kMaxThreads threads.
#include "exchange/exchange.cuh"
#include "elements/transformed_packs.cuh"

struct TransformedArgs {
    Team team;
    TransformedRows rows;
};

template <class From, class To, class Transform>
__global__ void __launch_bounds__(kMaxThreads, 1) allgather_transformed(const __grid_constant__ TransformedArgs args) {
    await_previous();
    const TransformedPacks<From, To, Transform> packs{args.rows};
    char* own = args.rows.recv + args.team.rank * args.rows.nbytes;
    const Span from = part_of(nullptr, args.rows.nbytes), to = part_of(own, args.rows.nbytes);
    move_packs(
        threadIdx.x, packs_in(to.nbytes), blockDim.x, [&](u64 i) { return packs(from.address, i, from.nbytes); },
        [&](u64 i, Pack pack) { store_pack(to.address, i, to.nbytes, pack); });
    __syncthreads();
    exchange_all<true>(
        args.team, [&](int) { return to; },
        [&](int rank) { return part_of(args.rows.recv + rank * args.rows.nbytes, args.rows.nbytes); });
}

template <class From, class To, class Transform>
__global__ void __launch_bounds__(kMaxThreads, 1) alltoall_transformed(const __grid_constant__ TransformedArgs args) {
    exchange_all<true>(
        args.team, [&](int rank) { return part_of(static_cast<const char*>(nullptr) + rank * args.rows.nbytes, args.rows.nbytes); },
        [&](int rank) { return part_of(args.rows.recv + rank * args.rows.nbytes, args.rows.nbytes); }, true,
        TransformedPacks<From, To, Transform>{args.rows});
}
