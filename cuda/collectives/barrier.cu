// Barrier: no rank's stream continues before every rank's stream has reached this kernel.
//
//   1. A fence releases what this rank stored before, at peers too.
//   2. The channel announces to all peers that this rank has entered (channel.cuh).
//   3. The block waits until all peers have entered, which acquires what they stored before.
// Launch: one block.
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
