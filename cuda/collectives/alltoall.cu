// Alltoall: block r of rank s's sendbuf becomes block s of rank r's recvbuf.
//
// For the steps see exchange.cuh. Launch: one block for each channel in use, up to kMaxThreads threads.
#include "exchange/exchange.cuh"

template <bool kLong>
__global__ void __launch_bounds__(kMaxThreads, 1) alltoall(const __grid_constant__ MoveArgs args) {
    exchange_all<kLong>(
        args.team,
        [&](int rank) { return part_of(args.send + rank * args.nbytes, args.nbytes); },
        [&](int rank) { return part_of(args.recv + rank * args.nbytes, args.nbytes); });
}
