// Allgather: block r of every rank's recvbuf becomes rank r's sendbuf.
//
// Every rank sends its block to every peer; each block of the grid sends a part of it. For the steps see exchange.cuh.
// Launch: one block for each channel in use, up to kMaxThreads threads.
#include "exchange/exchange.cuh"

template <bool kLong>
__global__ void __launch_bounds__(kMaxThreads, 1) allgather(const __grid_constant__ MoveArgs args) {
    exchange_all<kLong>(
        args.team,
        [&](int) { return part_of(args.send, args.nbytes); },
        [&](int rank) { return part_of(args.recv + rank * args.nbytes, args.nbytes); });
}
