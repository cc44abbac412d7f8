// Collect: one number for each row goes back to the choice that became the row.
#include "shuffle.cuh"

struct CollectArgs {
    Shuffle shuffle;
    const float* row_values;  // [capacity]
    const Pack* links;        // of the dispatch, as the following
    const i64* total;
    const u64* routes;
    float* out;  // [token_count][k]; 0 for a choice without a row
    i64 token_count;
    i64 phases;
};

__device__ bool send(const CollectArgs& args, Channel& channel) {
    if (!channel.await_entered(0)) return false;  // who is still reading what came last time has not
    const i64 total = args.total[0];
    for (i64 row = i64(blockIdx.x) * blockDim.x + threadIdx.x; row < total; row += i64(gridDim.x) * blockDim.x) {
        const Link link = Link::unpack(args.links[row]);
        float* values = reinterpret_cast<float*>(args.shuffle.values[link.source]);
        values[link.token * args.shuffle.k + link.choice] = args.row_values[row];
    }
    __syncthreads();
    return true;
}

__device__ void receive(const CollectArgs& args) {
    const float* values = reinterpret_cast<const float*>(args.shuffle.values[args.shuffle.team.rank]);
    const i64 choices = args.token_count * args.shuffle.k;
    for (i64 i = i64(blockIdx.x) * blockDim.x + threadIdx.x; i < choices; i += i64(gridDim.x) * blockDim.x)
        args.out[i] = args.routes[i] == kNoRow ? 0.0f : values[i];
}

__global__ void __launch_bounds__(kMaxThreads, 1) collect(const __grid_constant__ CollectArgs args) {
    run_phases(
        args.shuffle.team, args.phases, [&](Channel& channel) { return send(args, channel); }, [&] { receive(args); });
}
