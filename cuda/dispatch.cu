// Dispatch: every token goes to the ranks of its experts, and lands grouped, ready for the experts.
//
// One launch, whatever the routing; the host knows no count. Rows of a bucket are in the order (source, token, choice).
// If all ranks have few tokens, these travel as packets, with all choices (few_tokens.cuh). Otherwise
//   1. the ranks exchange counts, so that each knows where its rows belong, on whatever rank (counting.cuh);
//   2. some of the warps store them there, each token once to a rank, with its ways and notes of its choices;
//   3. the others copy a token's data to its other rows as it comes, and hand out ways and notes.
// With a handle of an earlier dispatch (`reuse`) only the data moves.
#include "dispatch_few.cuh"
#include "dispatch_many.cuh"

// Past the rows there is no expert.
__device__ void write_end(const DispatchArgs& args, i64 total) {
    for (i64 row = total + blockIdx.x * blockDim.x + threadIdx.x; row < args.shuffle.capacity; row += gridDim.x * blockDim.x) {
        args.row_experts[row] = -1;
        args.row_weights[row] = 0.0f;
    }
}

// Tokens leave, if this rank has few of them; all_few: all ranks have. False: leave.
template <class From, class To, class Transform>
__device__ bool begin(
    const DispatchArgs& args, const FewTokens& few, Table& table, const Channel& channel, Early<From, To, Transform>& early,
    bool& all_few) {
    const bool sends = args.phases & kSend, hurries = sends && !args.reuse && few.are_few(args.token_count);
    if (hurries) early.look_up(args);
    few.find_slots();
    if (!args.reuse) clear_counts(args.shuffle, table);
    if (!args.reuse && sends) few.tell_count(args.token_count);
    if (!hurries) __syncthreads();  // else the next barrier is soon enough
    all_few = args.reuse ? few.all_have(table.tokens) : few.are_few(args.token_count);
    if (all_few && sends) {
        args.reuse ? recall_choices(args, few, table, early) : send_choices(args, few, table, early);
        send_steps(args, few, OwnChoices(table).place, early);
    }
    if (sends) channel.announce();
    if (args.reuse || !all_few) return true;
    const bool ok = receive_choices(args.shuffle, few, table);
    all_few = few.all_have(table.tokens);
    return ok;
}

// Whatever else there is to do in this launch. False: leave.
template <class From, class To, class Transform>
__device__ bool move(
    const DispatchArgs& args, const FewTokens& few, Table& table, Queue& queue, DispatchList* lists, bool all_few) {
    const Shuffle& shuffle = args.shuffle;
    const bool counted = all_few || (args.phases & kSend);  // in this launch
    if (!all_few) {
        const bool learnt = args.reuse || few.are_few(args.token_count);  // by `begin`
        if (!learnt && !few.learn_counts(table.tokens)) return false;
        if ((args.phases & kSend) && is_scribe() && !args.reuse)
            write_counts(args, table, [&](int source, int b) { return shuffle.matrix[source * shuffle.buckets + b]; });
        move_many<From, To, Transform>(args, few.epoch, table, queue, lists);
    } else if (args.phases & kReceive) receive_few<To>(args, few, table, lists);
    if ((args.phases & kReceive) && !args.reuse) write_end(args, counted ? total_of(shuffle, table) : args.total[0]);
    return true;
}

template <class From, class To, class Transform = NoTransform>
__global__ void __launch_bounds__(kMaxThreads, 1) dispatch(const __grid_constant__ DispatchArgs args) {
    __shared__ Table table;
    __shared__ DispatchList lists[kMaxWarps];
    __shared__ Queue queue;
    __shared__ Slots slots;
    const Shuffle& shuffle = args.shuffle;
    const bool sends = args.phases & kSend;
    const Steps steps{shuffle, packs_of<To>(shuffle.hidden)};
    Early<From, To, Transform> early;
    await_previous();
    if (sends && steps.are_few(args.token_count)) early.load(args, steps);
    if (args.reuse && int(threadIdx.x) < shuffle.team.size) table.tokens[threadIdx.x] = args.token_counts[threadIdx.x];
    Channel channel(shuffle.team, sends, false);
    if (sends) scrub_own_slots(shuffle, channel);
    const FewTokens few{steps, channel.epoch, slots};
    bool all_few = false, ok = !sends || channel.await_entered(1);  // the packets' slots are free
    if (ok) ok = begin(args, few, table, channel, early, all_few);
    if (ok && sends && !all_few) {
        ok = args.reuse || find_rows(args, table, channel);
        if (!channel.await_entered(0)) ok = false;  // who still reads what came last time has not
    }
    if (ok) ok = move<From, To, Transform>(args, few, table, queue, lists, all_few);
    channel.leave(ok && sends && !(all_few && args.reuse));
}
