// Combine: the results of a token's rows come back to its rank, added up.
//
// The sum has a fixed order in every run and for every layout of rows:
//   1. a rank adds weight * result over the token's rows that it has, in the order of the choices,
//      in single precision, rounds to the type of the results, and sends the sum;
//   2. the token's rank adds what comes, in rank order, in single precision, and rounds once more.
// So a token's results travel once from each rank, as its data did: as lines if all ranks have few
// tokens (few_tokens.cuh), otherwise as stores to their places, while some warps add up what has
// come. Signals and the Gate (stages.cuh) order these.
// Launch: one block for each channel in use, up to kMaxThreads threads.
#include "tokens/combine_few.cuh"

// Warps, of kMaxWarps, that add up first: one for each peer, at most so many; the others send. 2
// H200 (docs/design_notes.md, "Block b of a rank deals with the tokens of block b …").
constexpr u32 kMostAdding = 4;

// The way of the token's choice with the lane's number.
__device__ __forceinline__ u32 first_way(const CombineArgs& args, int source, i64 token) {
    const u32 lane = threadIdx.x % 32, k = u32(args.shuffle.k);
    return lane < k ? args.ways[(source * args.shuffle.max_tokens + token) * k + lane] : kNoWay;
}

// The rows of a token of `source` here, and their weights.
__device__ __forceinline__ int list_rows(
    const CombineArgs& args, int source, i64 token, u32 first, CombineLists& lists) {
    const u32 warp = threadIdx.x / 32;
    const u32* ways = args.ways + (source * args.shuffle.max_tokens + token) * args.shuffle.k;
    return lists.rows[warp].list(
        int(args.shuffle.k), [&](int c) { return c < 32 ? first : ways[c]; },
        [&](int number, int, u32 row) { lists.weights[warp][number] = weight_of(args, row); });
}

// Sends packs i, i + 32 … of the sum over a token's rows here.
template <class T, class Shape, class Address, class Transform, bool kWhole>
__device__ __forceinline__ void send_tile(
    const CombineArgs& args, const CombineLists& lists, int count, u32 i, Pack* to) {
    const u32 packs = u32(packs_of<T>(args.shuffle.hidden));
    const auto sums = folded<T, Shape, Address, Transform, kWhole>(args, lists, count, i);
#pragma unroll
    for (int p = 0; p < Shape::kPacks; ++p)
        if (kWhole || i + p * 32 < packs) put_pack(to + i + p * 32, sums.rounded(p));
}

template <class T, class Shape, class Address, class Transform>
__device__ __forceinline__ void send_sum(
    const CombineArgs& args, Share share, const CombineLists& lists, int count, Pack* to) {
    const u32 packs = u32(packs_of<T>(args.shuffle.hidden)), lane = threadIdx.x % 32;
    for (u32 tile = share.member / 32 * Shape::kTile; tile < packs;
         tile += share.members * Shape::kPacks) {
        if (tile + Shape::kTile <= packs) {
            send_tile<T, Shape, Address, Transform, true>(args, lists, count, tile + lane, to);
            continue;
        }
        for (u32 rest = tile; rest < packs; rest += One::kTile)
            send_tile<T, One, Address, Transform, false>(args, lists, count, rest + lane, to);
    }
}

// A token of some source, if there is one.
struct Token {
    int source;
    i64 number;
    bool exists;

    // The token of a job; sources take turns, beginning with the next rank.
    __device__ Token(const Jobs& jobs, u32 job, const Team& team, const i64* tokens) {
        source = team.rank + 1 + int(jobs.source(job));
        if (source >= team.size) source -= team.size;
        const Range range(tokens[source]);
        number = range.begin + jobs.token(job);
        exists = job < jobs.count() && number < range.end;
    }
};

// Sends the sums over the rows of this block's tokens to the tokens' ranks. Ways of the next token
// are loaded meanwhile.
template <class T, class Transform>
__device__ void send_sums(
    const CombineArgs& args, const Jobs& jobs, const Signals& signals, Queue& queue,
    const i64* tokens, CombineLists& lists, Gate& gate) {
    const Shuffle& shuffle = args.shuffle;
    const int me = shuffle.team.rank;
    const u64 packs = packs_of<T>(shuffle.hidden);
    const auto way_of = [&](const Token& token) {
        return token.exists ? first_way(args, token.source, token.number) : kNoWay;
    };
    u32 next = queue.take(kSend), way = way_of(Token(jobs, next, shuffle.team, tokens));
    while (next < jobs.count()) {
        const u32 job = next, first = way;
        const Token token(jobs, job, shuffle.team, tokens);
        next = queue.take(kSend);
        way = way_of(Token(jobs, next, shuffle.team, tokens));
        const int count = token.exists ? list_rows(args, token.source, token.number, first, lists)
                                       : 0;
        if (!gate.pass()) return;
        if (count > 0) {
            const u64 slot =
                result_slot(shuffle, token.number, me, lists.rows[threadIdx.x / 32].leading);
            Pack* to = reinterpret_cast<Pack*>(shuffle.results[token.source]) + slot * packs;
            if (is_aligned(args.results))
                send_sum<T, Folding, Aligned, Transform>(args, jobs.share(job), lists, count, to);
            else send_sum<T, One, Unaligned, Transform>(args, jobs.share(job), lists, count, to);
        }
        signals.finish(queue, jobs.stage(job), jobs.stages());
    }
}

// Lists where a token's sums come back. All lanes of a warp. Returns their number.
template <class T>
__device__ int list_parts(const CombineArgs& args, i64 token, const char** parts) {
    const Shuffle& shuffle = args.shuffle;
    const int lane = int(threadIdx.x % 32), k = int(shuffle.k);
    const u64 packs = packs_of<T>(shuffle.hidden);
    __syncwarp();  // the last token's places have been used
    const int leading =
        lane < shuffle.team.size ? leading_choice(args.routes + token * k, k, lane) : -1;
    const u32 present = __ballot_sync(0xffffffffu, leading >= 0);
    if (leading >= 0) {
        const u64 slot = result_slot(shuffle, token, lane, leading);
        parts[__popc(present & ((1u << lane) - 1))] = shuffle.results[shuffle.team.rank] +
            slot * packs * kPackNbytes;
    }
    __syncwarp();
    return __popc(present);
}

// Adds up the sums that have come back for a token.
template <class T, class Out>
__device__ void add_up(
    const CombineArgs& args, Share share, i64 token, const char* const* parts, int count) {
    const u32 packs = u32(packs_of<T>(args.shuffle.hidden)), lane = threadIdx.x % 32;
    const u64 nbytes = u64(args.shuffle.hidden) * sizeof(Out);
    for (u32 tile = share.member / 32 * Adding::kTile; tile < packs;
         tile += share.members * Adding::kPacks) {
        const u32 i = tile + lane;
        Sums<T, Adding> sums;
        sums.template add<Aligned, false>(
            count, i, packs, [&](int s) { return parts[s]; }, [](int) { return 1.0f; },
            [](int, u32, Pack pack) { return pack; });
#pragma unroll
        for (int p = 0; p < Adding::kPacks; ++p)
            if (i + p * 32 < packs)
                sums.template store<Out>(p, args.out + token * nbytes, i + p * 32, nbytes);
    }
}

// Adds up the sums that come back for this block's tokens. Their places are computed while they are
// in flight.
template <class T, class Out>
__device__ void add_sums(
    const CombineArgs& args, const Jobs& jobs, const Signals& signals, Queue& queue,
    const char** parts) {
    const i64 begin = Range(args.token_count).begin;
    u32 stored = 0;  // stages
    for (u32 job = queue.take(kReceive); job < jobs.count(); job = queue.take(kReceive)) {
        const u32 stage = jobs.stage(job);
        const i64 token = begin + jobs.token(job);
        const int count = list_parts<T>(args, token, parts);
        if (stage >= stored && !signals.await_stored([&](int) { return i64(stage + 1); })) return;
        stored = stage + 1;
        add_up<T, Out>(args, jobs.share(job), token, parts, count);
    }
}

// What is computed before the previous kernel has ended, if this rank has few tokens.
struct CombinePrepared {
    const Steps steps;
    const bool is_few;
    Steps::Turn turn;
    Step step;  // the first of this rank's that the warp adds up
    FoundSlots slots;
    EarlyWay early;

    __device__ CombinePrepared(const CombineArgs& args, u32 row_packs, u32 step_packs)
        : steps{args.shuffle, row_packs, step_packs}, is_few(steps.are_few(args.token_count)) {
        if (!is_few) return;
        turn = steps.first_turn();
        step = steps.step(threadIdx.x / 32);
        slots.find(args.shuffle);
        early.choice = few_choice(args.shuffle, threadIdx.x);
    }

    __device__ u64 dependency() const {
        return turn.dependency() ^ step.dependency() << 16 ^ slots.dependency() ^ early.choice;
    }
};

// The work of this launch, after the channel is ready. True: this thread received all counts that
// it waited for.
template <class T, class Out, class Transform>
__device__ bool move(
    const CombineArgs& args, const FewTokens& few, const Channel& channel,
    const CombinePrepared& prepared, const i64* tokens, FewRows& few_rows, CombineLists& lists) {
    const u32 warp = threadIdx.x / 32;
    const i64 most = few.most_of(tokens);
    if (few.are_few(most)) {
        const bool sends = args.phases & kSend;
        if (sends)
            send_steps<T, Transform>(args, few, prepared.turn, tokens, most, few_rows, lists);
        read_ranks(args, prepared.early, sends, few_rows);
        const bool ok = !is_whole(args.phases) || few.receive_counts();
        __syncthreads();  // a block reads what it has sent to itself
        if (args.phases & kReceive) receive_steps<T, Out>(args, few, prepared.step, few_rows);
        return ok;
    }
    const u32 size = u32(args.shuffle.team.size), longest = longest_range(tokens, int(size));
    const Jobs sent(size, longest, longest), received(1, Range(args.token_count).length(), longest);
    const Signals signals{args.shuffle.team, few.epoch};
    Gate gate(channel, !(args.phases & kSend));
    lists.queue.begin(sent);
    const u32 adding = u32(smaller(size - 1, kMostAdding));
    if ((args.phases & kSend) && !receives_first(args.phases, kMaxWarps - adding, sent.stages()))
        send_sums<T, Transform>(args, sent, signals, lists.queue, tokens, lists, gate);
    if (args.phases & kReceive)
        add_sums<T, Out>(args, received, signals, lists.queue, lists.parts[warp]);
    return gate.pass();
}

template <class T, class Out, class Transform = NoTransform>
__global__ void __launch_bounds__(kMaxThreads, 1)
    combine(const __grid_constant__ CombineArgs args) {
    __shared__ CombineLists lists;
    __shared__ FewRows few_rows;
    __shared__ Slots slots;
    __shared__ i64 tokens[kMaxRanks];
    const Shuffle& shuffle = args.shuffle;
    CombinePrepared prepared(args, u32(packs_of<T>(shuffle.hidden)), kStepPacks<T>);
    const bool sends = args.phases & kSend, sends_early = sends && prepared.is_few;
    if (prepared.is_few) clear_ranks(few_rows, u32(args.token_count));
    ChannelControl* const control = Channel::find(shuffle.team);
    await_previous(prepared.dependency() ^ u64(control));
    if (sends_early) prepared.early.load(args);
    const u32 rank = number_from_last();
    if (rank < u32(shuffle.team.size)) tokens[rank] = args.token_counts[rank];
    const bool sends_count = sends_early && is_whole(args.phases);
    Channel channel(shuffle.team, control, takes_few(), sends, !sends_count);
    if (sends) scrub_own_slots(shuffle, channel);
    const FewTokens few{prepared.steps, channel.epoch, slots};
    few.keep(prepared.slots);
    // Packets may go once their slots are free; sums of many tokens wait at the Gate.
    const int peer = int(blockDim.x - 1 - threadIdx.x);
    bool ok = !sends || channel.all_entered == channel.epoch - 1 || !channel.is_peer(peer) ||
              channel.wait_for_entered(peer, channel.epoch - 1);
    if (sends_early) read_rows(args, prepared.early, few_rows);
    ok = Channel::everyone(ok);
    const bool all_few = few.are_few(few.most_of(tokens));
    if (ok && sends_count) all_few ? few.send_count(args.token_count) : channel.announce();
    if (ok) ok = move<T, Out, Transform>(args, few, channel, prepared, tokens, few_rows, lists);
    channel.leave(ok && sends && (!all_few || (sends_count && counts_as_entered(channel))));
}
