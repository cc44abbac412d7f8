// Gather: block r of root's recvbuf becomes rank r's sendbuf.
//
// Every rank sends its block straight to root, whose link bounds it. args.recv is used at root only.
// For the steps see exchange.cuh. Launch: one block for each channel in use, up to kMaxThreads threads.
#include "exchange/exchange.cuh"

template <bool kLong>
__global__ void __launch_bounds__(kMaxThreads, 1) gather(const __grid_constant__ MoveArgs args) {
    const bool is_root = args.team.rank == args.root;
    const Span nothing{args.recv, 0, 0};
    exchange_all<kLong>(
        args.team,
        [&](int rank) { return rank == args.root ? part_of(args.send, args.nbytes) : nothing; },
        [&](int rank) { return is_root ? part_of(args.recv + rank * args.nbytes, args.nbytes) : nothing; }, false);
}
