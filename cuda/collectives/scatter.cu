// Scatter: every rank's recvbuf becomes block r of root's sendbuf.
//
// Root sends each block straight to its rank; root's link bounds it. args.send is used at root only.
// Steps and ways: exchange.cuh. Launch: one block for each channel in use, up to kMaxThreads threads.
#include "exchange/exchange.cuh"

template <bool kLong>
__global__ void __launch_bounds__(kMaxThreads, 1) scatter(const __grid_constant__ MoveArgs args) {
    const bool is_root = args.team.rank == args.root;
    const Span nothing{args.recv, 0, 0};
    exchange_all<kLong>(
        args.team,
        [&](int rank) { return is_root ? part_of(args.send + rank * args.nbytes, args.nbytes) : nothing; },
        [&](int rank) { return rank == args.root ? part_of(args.recv, args.nbytes) : nothing; }, false);
}
