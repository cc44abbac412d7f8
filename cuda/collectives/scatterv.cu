// Scatterv: every rank's recvbuf becomes block r of root's sendbuf. Root alone has the blocks' places.
//
// Steps: announced.cuh. Launch: one block for each channel in use, up to kMaxThreads threads.
#include "exchange/announced.cuh"
#include "exchange/blocks.cuh"

__global__ void __launch_bounds__(kMaxThreads, 1) scatterv(const __grid_constant__ BlocksArgs args) {
    exchange_announced(
        args.team,
        [&](int from, int) { return from == args.root; },
        [&](int rank) { return Block{args.send + args.begin_of[rank], args.nbytes_of[rank]}; },
        [&](int) { return Block{args.recv, args.nbytes}; });
}
