// Collect: one number for each row goes back to the choice that became the row.
//
//   1. Every rank stores the numbers at the tokens' ranks, after these have entered the operation;
//      a signal follows.
//   2. A rank waits for all signals, and writes a number for each choice.
// Launch: one block for each channel in use, up to kMaxThreads threads; one launch, or two for its
// halves.
#include "tokens/stages.cuh"

struct CollectArgs {
    Shuffle shuffle;
    const float* row_values;  // [capacity]
    const u32* ways;          // these and the following are the dispatch's
    const i64* token_counts;
    const u64* routes;
    float* out;  // [token_count][k]; 0 for a choice without a row
    i64 token_count;
    i64 phases;
};

__device__ void send(const CollectArgs& args, u32 epoch) {
    const Shuffle& shuffle = args.shuffle;
    for (int source = 0; source < shuffle.team.size; ++source) {
        const Range range(args.token_counts[source]);
        float* values = reinterpret_cast<float*>(shuffle.values[source]);
        const u32* ways = args.ways + source * shuffle.max_tokens * shuffle.k;
        for (i64 i = range.begin * shuffle.k + threadIdx.x; i < range.end * shuffle.k;
             i += blockDim.x)
            if (ways[i] != kNoWay) values[i] = args.row_values[ways[i]];
    }
    __syncthreads();
    if (threadIdx.x < 32) Signals{shuffle.team, epoch}.signal_stored(1);
}

__device__ void receive(const CollectArgs& args, u32 epoch) {
    const Shuffle& shuffle = args.shuffle;
    const float* values = reinterpret_cast<const float*>(shuffle.values[shuffle.team.rank]);
    const Range range(args.token_count);
    if (!Signals{shuffle.team, epoch}.await_stored([](int) { return 1; })) return;
    for (i64 i = range.begin * shuffle.k + threadIdx.x; i < range.end * shuffle.k; i += blockDim.x)
        args.out[i] = args.routes[i] == kNoRow ? 0.0f : values[i];
}

__global__ void __launch_bounds__(kMaxThreads, 1)
    collect(const __grid_constant__ CollectArgs args) {
    const bool sends = args.phases & kSend;
    Channel channel(args.shuffle.team, takes_few(), sends);
    if (sends) scrub_own_slots(args.shuffle, channel);
    // then no peer reads the last numbers any more
    const bool ok = !sends || channel.await_entered(0);
    if (ok && sends) send(args, channel.epoch);
    if (ok && (args.phases & kReceive)) receive(args, channel.epoch);
    channel.leave(ok && sends);
}
