// Allgatherv: rank r's sendbuf becomes block r of every rank's recvbuf. All ranks know all lengths, so only blocks
// travel.
//
// For the steps see exchange.cuh. Launch: one block for each channel in use, up to kMaxThreads threads.
#include "exchange/blocks.cuh"
#include "exchange/exchange.cuh"

template <bool kLong>
__global__ void __launch_bounds__(kMaxThreads, 1) allgatherv(const __grid_constant__ BlocksArgs args) {
    exchange_all<kLong>(
        args.team,
        [&](int) { return part_of(args.send, args.nbytes_of[args.team.rank]); },
        [&](int rank) { return part_of(args.recv + args.begin_of[rank], args.nbytes_of[rank]); });
}
