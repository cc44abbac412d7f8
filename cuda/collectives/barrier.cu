// Barrier: no rank's stream goes on before every rank's stream has come here.
//
// One block. Entering an operation is said to all peers anyway (channel.cuh); a barrier waits for it.
// It releases what this rank wrote before it, at peers too, and acquires what the peers wrote before theirs.
#include "protocol/channel.cuh"

struct BarrierArgs {
    Team team;
};

__global__ void __launch_bounds__(kMaxThreads, 1) barrier(const __grid_constant__ BarrierArgs args) {
    await_previous();
    fence_sys();
    Channel channel(args.team);
    channel.leave(channel.await_entered(0));
}
