// Allgatherv: rank r's sendbuf becomes block r of every rank's recvbuf, as long as all ranks say it is.
//
// All ranks know all lengths, so nothing but the blocks has to travel.
#include "exchange/blocks.cuh"
#include "exchange/exchange.cuh"

__global__ void __launch_bounds__(kMaxThreads, 1) allgatherv(const __grid_constant__ BlocksArgs args) {
    exchange_all(
        args.team,
        [&](int) { return part_of(args.send, args.nbytes_of[args.team.rank]); },
        [&](int rank) { return part_of(args.recv + args.begin_of[rank], args.nbytes_of[rank]); });
}
