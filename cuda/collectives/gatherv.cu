// Gatherv: rank r's sendbuf becomes block r of root's recvbuf. Only root has their places and lengths.
//
// For the steps see announced.cuh. Launch: one block for each channel in use, up to kMaxThreads threads.
#include "exchange/announced.cuh"
#include "exchange/blocks.cuh"

__global__ void __launch_bounds__(kMaxThreads, 1) gatherv(const __grid_constant__ BlocksArgs args) {
    exchange_announced(
        args.team,
        [&](int, int to) { return to == args.root; },
        [&](int) { return Block{args.send, args.nbytes}; },
        [&](int rank) { return Block{args.recv + args.begin_of[rank], args.nbytes_of[rank]}; });
}
