// Dispatch: every token goes to the ranks of its experts, and its rows are grouped by expert there.
//
// One launch for any routing (or two, for its halves); the host has no counts. Rows of a bucket are
// in the order (source, token, choice). If all ranks have few tokens, these travel as lines, beside
// all choices (few_tokens.cuh). Otherwise
//   1. the ranks exchange counts, so that each can compute where its rows belong, on any rank
//      (counting.cuh);
//   2. some warps store them there, each token once to a rank, with ways and notes of its choices;
//   3. the others copy a token's data to its other rows as it comes, and write the handle.
// With a handle of an earlier dispatch (`reuse`) only the data moves.
//
// Launch: one block for each channel in use, up to kMaxThreads threads. A grid of few threads is
// launched early: then all addresses are computed before await_previous.
#include "tokens/dispatch_few.cuh"
#include "tokens/dispatch_many.cuh"

// What is computed before the previous kernel has ended.
template <class From, class To, class Transform>
struct DispatchPrepared {
    const Steps steps;
    const bool is_few;
    Steps::Turn turn;
    FoundSlots slots;
    ChoiceReceiver receiver;
    NearPlaces near;
    Early<From, To, Transform> early;

    __device__ explicit DispatchPrepared(const DispatchArgs& args)
        : steps{args.shuffle, u32(packs_of<To>(args.shuffle.hidden)), kStepPacks<To>},
          is_few(steps.are_few(args.token_count)) {
        slots.find(args.shuffle);
        if (!is_few) return;
        turn = steps.first_turn();
        receiver = ChoiceReceiver(args.shuffle);
        early.find(args, steps);
        if (!args.reuse) near.load(args.shuffle);
    }

    __device__ u64 dependency() const {
        return turn.dependency() ^ slots.dependency() ^ receiver.dependency() ^ early.dependency();
    }
};

// Sends tokens, if this rank has few. Sets `most`, the most tokens of a rank, if this rank has few
// or the counts are in the handle; otherwise this rank's number. False: leave.
template <class Prepared>
__device__ bool begin(
    const DispatchArgs& args, const FewTokens& few, Table& table, const Channel& channel,
    Prepared& prepared, i64& most) {
    const bool sends = args.phases & kSend, sends_early = sends && prepared.is_few;
    few.keep(prepared.slots);
    if (sends && !args.reuse)
        prepared.near.keep(args.shuffle, prepared.is_few ? table.few.places : table.places);
    if (sends) few.send_count(args.token_count);
    __syncthreads();
    most = args.reuse ? few.most_of(table.tokens) : args.token_count;
    const bool may_be_few = few.are_few(most);
    if (may_be_few && sends) {
        args.reuse ? recall_choices(args, table, prepared.early)
                   : place_choices(args, table, prepared.early);
        if (prepared.early.has_step) prepared.early.round(args, few, prepared.early.step);
        __syncthreads();
        if (!args.reuse) send_choices(args, few, table);
        send_steps(args, few, OwnChoices(table).place, prepared.early);
        // A block reads what it has sent to itself after a barrier: lines are whole only between
        // GPUs.
        if (args.reuse) __syncthreads();
    }
    bool ok = true;
    if (!args.reuse && may_be_few) {
        ok = receive_choices(args.shuffle, few, table, prepared.receiver);
        most = few.most_of(table.tokens);
    }
    if (sends_early && !few.are_few(most)) channel.announce();
    return ok;
}

// The rest of this launch for few tokens. True: this thread received all counts that it waited for.
template <class To>
__device__ bool finish_few(
    const DispatchArgs& args, const FewTokens& few, i64 most, const Steps::Turn& turn, Table& table,
    DispatchList* lists) {
    const bool ok = !args.reuse || !is_whole(args.phases) || few.receive_counts();
    if (args.phases & kReceive) receive_few<To>(args, few, most, turn, table, lists);
    return ok;
}

// The same for many tokens. False: leave.
template <class From, class To, class Transform>
__device__ bool finish_many(
    const DispatchArgs& args, const FewTokens& few, const Channel& channel, Counter& counter,
    Table& table, Queue& queue, DispatchList* lists) {
    const Shuffle& shuffle = args.shuffle;
    const bool sends = args.phases & kSend, counts = sends && !args.reuse,
               is_few = few.are_few(args.token_count);
    if (counts && !find_rows(args, few, table, channel, counter, is_few)) return false;
    const bool has_counts = args.reuse || counts || is_few;
    if (!has_counts && !Channel::everyone(few.receive_counts(table.tokens))) return false;
    if (counts && writes_counts())
        write_counts(args, table, [&](int source, int b) {
            return shuffle.matrix[source * shuffle.buckets + b];
        });
    Gate gate(channel, counts || !sends);  // after counting, all peers have entered
    move_many<From, To, Transform>(args, few.epoch, table, queue, gate, lists);
    return gate.pass();
}

// If all ranks have few tokens, each receives packets of every other, so none has to announce the
// operation, which takes longer than a packet's trip. In two launches with a handle the first one
// waits for no packet, so it announces.
template <class From, class To, class Transform = NoTransform>
__global__ void __launch_bounds__(kMaxThreads, 1)
    dispatch(const __grid_constant__ DispatchArgs args) {
    __shared__ Table table;
    __shared__ DispatchList lists[kMaxWarps];
    __shared__ Queue queue;
    __shared__ Slots slots;
    const Shuffle& shuffle = args.shuffle;
    const bool sends = args.phases & kSend;
    DispatchPrepared<From, To, Transform> prepared(args);
    keep_first_buckets(shuffle, table);
    if (prepared.is_few && !args.reuse) clear_counts(shuffle, table);
    ChannelControl* const control = Channel::find(shuffle.team);
    await_previous(prepared.dependency() ^ u64(control));
    if (sends && prepared.is_few) prepared.early.load(args);
    const bool reads_count = args.reuse && int(threadIdx.x) < shuffle.team.size;
    const i64 tokens = reads_count ? args.token_counts[threadIdx.x] : 0;
    Counter counter;
    if (sends && !prepared.is_few && !args.reuse) {
        prepared.near.load(shuffle);
        counter = begin_counting(args, table);
    }
    const bool receives_counts = !args.reuse || is_whole(args.phases);
    Channel channel(
        shuffle.team, control, takes_few(), sends, !(prepared.is_few && receives_counts));
    if (reads_count) table.tokens[threadIdx.x] = tokens;
    if (sends) scrub_own_slots(shuffle, channel);
    const FewTokens few{prepared.steps, channel.epoch, slots};
    bool ok = !sends || channel.await_entered(1);  // the slots of packets are free
    i64 most = 0;
    if (ok) ok = begin(args, few, table, channel, prepared, most);
    const bool all_few = few.are_few(most);
    if (ok && all_few) ok = finish_few<To>(args, few, most, prepared.turn, table, lists);
    else if (ok)
        ok = finish_many<From, To, Transform>(args, few, channel, counter, table, queue, lists);
    channel.leave(ok && sends && (!all_few || (receives_counts && counts_as_entered(channel))));
}
