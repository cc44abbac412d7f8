// Collect: one number for each row goes back to the choice that became the row.
#include "shuffle.cuh"

struct CollectArgs {
    Shuffle shuffle;
    const float* row_values;  // [capacity]
    const u32* ways;          // of the dispatch, as the following
    const i64* token_counts;
    const u64* routes;
    float* out;  // [token_count][k]; 0 for a choice without a row
    i64 token_count;
    i64 phases;
};

__device__ void send(const CollectArgs& args, const Gang& gang, u32 epoch) {
    const Shuffle& shuffle = args.shuffle;
    for (int source = 0; source < shuffle.team.size; ++source) {
        const Range range(args.token_counts[source]);
        float* values = reinterpret_cast<float*>(shuffle.values[source]);
        const u32* ways = args.ways + source * shuffle.max_tokens * shuffle.k;
        for (i64 i = range.begin * shuffle.k + gang.member(); i < range.end * shuffle.k; i += gang.members())
            if (ways[i] != kNoWay) values[i] = args.row_values[ways[i]];
    }
    gang.everyone(true);
    Signals{shuffle.team, epoch}.say_stored(gang, 1);
}

__device__ void receive(const CollectArgs& args, const Gang& gang, u32 epoch) {
    const Shuffle& shuffle = args.shuffle;
    const float* values = reinterpret_cast<const float*>(shuffle.values[shuffle.team.rank]);
    const Range range(args.token_count);
    if (!Signals{shuffle.team, epoch}.await_stored(gang, [](int) { return 1; })) return;
    for (i64 i = range.begin * shuffle.k + gang.member(); i < range.end * shuffle.k; i += gang.members())
        args.out[i] = args.routes[i] == kNoRow ? 0.0f : values[i];
}

__device__ void move(const CollectArgs& args, u32 epoch) {
    const Gang senders(args.phases, kSend, kMaxWarps, 1), receivers(args.phases, kReceive, kMaxWarps, 1);
    if ((args.phases & kSend) && senders.has_me()) send(args, senders, epoch);
    if ((args.phases & kReceive) && receivers.has_me()) receive(args, receivers, epoch);
}

__global__ void __launch_bounds__(kMaxThreads, 1) collect(const __grid_constant__ CollectArgs args) {
    const bool sends = args.phases & kSend;
    Channel channel(args.shuffle.team, sends);
    if (sends) scrub_own_slots(args.shuffle, channel);
    const bool ok = !sends || channel.await_entered(0);  // who is still reading what came last time has not
    if (ok) move(args, channel.epoch);
    channel.leave(ok && sends);
}
