// Dispatch: every token goes to the ranks of its experts, and lands grouped, ready for the experts.
//
// One launch, whatever the routing; the host knows no count. Rows of a bucket are in the order (source, token, choice).
// If all ranks have few tokens, these travel as lines, beside all choices (few_tokens.cuh). Otherwise
//   1. the ranks exchange counts, so that each knows where its rows belong, on whatever rank (counting.cuh);
//   2. some of the warps store them there, each token once to a rank, with its ways and notes of its choices;
//   3. the others copy a token's data to its other rows as it comes, and hand out ways and notes.
// With a handle of an earlier dispatch (`reuse`) only the data moves.
#include "tokens/dispatch_few.cuh"
#include "tokens/dispatch_many.cuh"

// What is found while the kernel before still runs, if that has few blocks as this one.
template <class From, class To, class Transform>
struct DispatchPrepared {
    const Steps steps;
    const bool is_few;
    Steps::Turn turn;
    FoundSlots slots;
    Listener listener;
    NearPlaces near;
    Early<From, To, Transform> early;

    __device__ explicit DispatchPrepared(const DispatchArgs& args)
        : steps{args.shuffle, u32(packs_of<To>(args.shuffle.hidden)), kStepPacks<To>}, is_few(steps.are_few(args.token_count)) {
        slots.find(args.shuffle);
        if (!is_few) return;
        turn = steps.first_turn();
        listener = Listener(args.shuffle);
        early.find(args, steps);
        if (!args.reuse) near.load(args.shuffle);
    }

    __device__ u64 known() const { return turn.known() ^ slots.known() ^ listener.known() ^ early.known(); }
};

// Tokens leave, if this rank has few of them. `most`: of a rank, as far as it is known of all; then of all, if this rank has
// few. False: leave.
template <class Prepared>
__device__ bool begin(
    const DispatchArgs& args, const FewTokens& few, Table& table, const Channel& channel, Prepared& prepared, i64& most) {
    const bool sends = args.phases & kSend, hurries = sends && prepared.is_few;
    few.keep(prepared.slots);
    if (sends && !args.reuse) prepared.near.keep(args.shuffle, prepared.is_few ? table.few.places : table.places);
    if (sends) few.tell_count(args.token_count);
    __syncthreads();
    most = args.reuse ? few.most_of(table.tokens) : args.token_count;
    const bool hopes = few.are_few(most);
    if (hopes && sends) {
        args.reuse ? recall_choices(args, table, prepared.early) : place_choices(args, table, prepared.early);
        if (prepared.early.has_step) prepared.early.round(args, few, prepared.early.step);
        __syncthreads();
        if (!args.reuse) send_choices(args, few, table);
        send_steps(args, few, OwnChoices(table).place, prepared.early);
        if (args.reuse) __syncthreads();  // lines are whole between GPUs; what a block sends to itself is read after a barrier
    }
    bool ok = true;
    if (!args.reuse && hopes) {
        ok = receive_choices(args.shuffle, few, table, prepared.listener);
        most = few.most_of(table.tokens);
    }
    if (hurries && !few.are_few(most)) channel.announce();
    return ok;
}

// What else there is to do of few tokens in this launch. True: this thread has heard whom it asked.
template <class To>
__device__ bool finish_few(
    const DispatchArgs& args, const FewTokens& few, i64 most, const Steps::Turn& turn, Table& table, DispatchList* lists) {
    const bool ok = !args.reuse || !is_whole(args.phases) || few.hear_counts();
    if (args.phases & kReceive) receive_few<To>(args, few, most, turn, table, lists);
    return ok;
}

// The same of many tokens. False: leave.
template <class From, class To, class Transform>
__device__ bool finish_many(
    const DispatchArgs& args, const FewTokens& few, const Channel& channel, Counter& counter, Table& table, Queue& queue,
    DispatchList* lists) {
    const Shuffle& shuffle = args.shuffle;
    const bool sends = args.phases & kSend, counts = sends && !args.reuse, is_few = few.are_few(args.token_count);
    if (counts && !find_rows(args, few, table, channel, counter, is_few)) return false;
    const bool learnt = args.reuse || counts || is_few;
    if (!learnt && !Channel::everyone(few.hear_counts(table.tokens))) return false;
    if (counts && is_scribe())
        write_counts(args, table, [&](int source, int b) { return shuffle.matrix[source * shuffle.buckets + b]; });
    Gate gate(channel, counts || !sends);  // who has counted has heard
    move_many<From, To, Transform>(args, few.epoch, table, queue, gate, lists);
    return gate.pass();
}

// Who has few tokens hears from every rank, if all have, and so do they: nobody need say that it has begun, which takes longer
// than a packet's trip. In two launches the first of a known dispatch waits for nobody.
template <class From, class To, class Transform = NoTransform>
__global__ void __launch_bounds__(kMaxThreads, 1) dispatch(const __grid_constant__ DispatchArgs args) {
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
    await_previous(prepared.known() ^ u64(control));
    if (sends && prepared.is_few) prepared.early.load(args);
    const bool knows = args.reuse && int(threadIdx.x) < shuffle.team.size;
    const i64 tokens = knows ? args.token_counts[threadIdx.x] : 0;
    Counter counter;
    if (sends && !prepared.is_few && !args.reuse) {
        prepared.near.load(shuffle);
        counter = begin_counting(args, table);
    }
    const bool hears = !args.reuse || is_whole(args.phases);
    Channel channel(shuffle.team, control, takes_few(), sends, !(prepared.is_few && hears));
    if (knows) table.tokens[threadIdx.x] = tokens;
    if (sends) scrub_own_slots(shuffle, channel);
    const FewTokens few{prepared.steps, channel.epoch, slots};
    bool ok = !sends || channel.await_entered(1);  // the packets' slots are free
    i64 most = 0;
    if (ok) ok = begin(args, few, table, channel, prepared, most);
    const bool all_few = few.are_few(most);
    if (ok && all_few) ok = finish_few<To>(args, few, most, prepared.turn, table, lists);
    else if (ok) ok = finish_many<From, To, Transform>(args, few, channel, counter, table, queue, lists);
    channel.leave(ok && sends && (!all_few || (hears && hears_enough(channel))));
}
