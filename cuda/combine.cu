// Combine: the results of a token's rows come back to its rank, added up.
//
// The sum has a fixed order, whatever the run or the layout of the rows: a rank adds weight * result over the
// token's rows that it has, in the order of the choices, in single precision, rounds to the type of the results and
// sends it; the token's rank adds what comes, in rank order, in single precision, and rounds once more. So a token's
// results travel once from each rank, as its data did: as packets, if all ranks have few tokens (few_tokens.cuh), else
// to their places, while some of the warps add up what has come.
#include "combine_few.cuh"

// Many tokens

constexpr u32 kCombineSending = 11;  // of kMaxWarps: they read all rows, the others a sum from each rank

// The rows of a token of `source` here, and their weights.
__device__ __forceinline__ int list_rows(const CombineArgs& args, int source, i64 token, CombineLists& lists) {
    const u32 warp = threadIdx.x / 32;
    const u32* ways = args.ways + (source * args.shuffle.max_tokens + token) * args.shuffle.k;
    return lists.rows[warp].list(
        int(args.shuffle.k), [&](int c) { return ways[c]; },
        [&](int number, int, u32 row) { lists.weights[warp][number] = weight_of(args, row); });
}

// Sends what a token's rows here add up to, packs `i`, i + 32 …
template <class T, class Shape, class Address, class Transform, bool kWhole>
__device__ __forceinline__ void send_tile(const CombineArgs& args, const CombineLists& lists, int count, u32 i, Pack* to) {
    const u32 packs = u32(packs_of<T>(args.shuffle.hidden));
    const auto sums = folded<T, Shape, Address, Transform, kWhole>(args, lists, count, i);
#pragma unroll
    for (int p = 0; p < Shape::kPacks; ++p)
        if (kWhole || i + p * 32 < packs) put_pack(to + i + p * 32, sums.rounded(p));
}

template <class T, class Shape, class Address, class Transform>
__device__ __forceinline__ void send_sum(const CombineArgs& args, const Crew& crew, const CombineLists& lists, int count, Pack* to) {
    const u32 packs = u32(packs_of<T>(args.shuffle.hidden)), lane = threadIdx.x % 32;
    for (u32 tile = crew.member / 32 * Shape::kTile; tile < packs; tile += crew.members * Shape::kPacks) {
        if (tile + Shape::kTile <= packs) send_tile<T, Shape, Address, Transform, true>(args, lists, count, tile + lane, to);
        else send_tile<T, Shape, Address, Transform, false>(args, lists, count, tile + lane, to);
    }
}

// Sends what this block's rows add up to where their tokens came from.
template <class T, class Transform>
__device__ void send_stages(
    const CombineArgs& args, const Gang& gang, const Signals& signals, const i64* tokens, CombineLists& lists) {
    const Shuffle& shuffle = args.shuffle;
    const int size = shuffle.team.size, me = shuffle.team.rank;
    const u64 packs = packs_of<T>(shuffle.hidden);
    for (i64 number = 0; number < most_stages(tokens, size); ++number) {
        const Stage stage{me + 1, size, tokens, number};
        const u32 jobs = stage.jobs();
        const Crew crew = gang.crew(jobs);
        for (u32 job = crew.first_job; job < jobs; job += crew.next_job) {
            int source = 0;
            i64 token = 0;
            if (!stage.find(job, source, token)) continue;
            const int count = list_rows(args, source, token, lists);
            if (count == 0) continue;
            const u64 slot = result_slot(shuffle, token, me, lists.rows[threadIdx.x / 32].leading);
            Pack* to = reinterpret_cast<Pack*>(shuffle.results[source]) + slot * packs;
            if (is_aligned(args.results)) send_sum<T, Folding, Aligned, Transform>(args, crew, lists, count, to);
            else send_sum<T, One, Unaligned, Transform>(args, crew, lists, count, to);
        }
        gang.everyone(true);
        signals.say_stored(gang, number + 1);
    }
}

// Adds up what has come back for a token.
template <class T, class Out>
__device__ void add_up(const CombineArgs& args, const Crew& crew, i64 token, const char** parts) {
    const Shuffle& shuffle = args.shuffle;
    const int lane = int(threadIdx.x % 32), k = int(shuffle.k);
    const u32 packs = u32(packs_of<T>(shuffle.hidden));
    const u64 nbytes = u64(shuffle.hidden) * sizeof(Out);
    __syncwarp();  // those of the last token have been used
    const int leading = lane < shuffle.team.size ? leading_choice(args.routes + token * k, k, lane) : -1;
    const u32 present = __ballot_sync(0xffffffffu, leading >= 0);
    if (leading >= 0) {
        const u64 slot = result_slot(shuffle, token, lane, leading);
        parts[__popc(present & ((1u << lane) - 1))] = shuffle.results[shuffle.team.rank] + slot * packs * kPackNbytes;
    }
    __syncwarp();
    for (u32 tile = crew.member / 32 * Adding::kTile; tile < packs; tile += crew.members * Adding::kPacks) {
        const u32 i = tile + u32(lane);
        Sums<T, Adding> sums;
        sums.template add<Aligned, false>(
            __popc(present), i, packs, [&](int s) { return parts[s]; }, [](int) { return 1.0f; },
            [](int, u32, Pack pack) { return pack; });
#pragma unroll
        for (int p = 0; p < Adding::kPacks; ++p)
            if (i + p * 32 < packs) sums.template store<Out>(p, args.out + token * nbytes, i + p * 32, nbytes);
    }
}

template <class T, class Out>
__device__ void receive_stages(const CombineArgs& args, const Gang& gang, const Signals& signals, const char** parts) {
    const Range range(args.token_count);
    for (i64 number = 0; number < range.stages(); ++number) {
        if (!signals.await_stored(gang, [&](int) { return number + 1; })) return;
        const i64 begin = range.begin + number * kStageTokens;
        const u32 jobs = u32(smaller(u64(range.end - begin), kStageTokens));
        const Crew crew = gang.crew(jobs);
        for (u32 job = crew.first_job; job < jobs; job += crew.next_job)
            add_up<T, Out>(args, crew, begin + job, parts);
    }
}

// What there is to do in this launch, after the first half has begun.
template <class T, class Out, class Transform>
__device__ void move(
    const CombineArgs& args, const FewTokens& few, const Channel& channel, const i64* tokens, Known& known, CombineLists& lists) {
    const u32 warp = threadIdx.x / 32;
    if (few.all_have(tokens)) {
        if (args.phases & kSend) send_steps<T, Transform>(args, few, tokens, known, lists);
        if (args.phases & kSend) channel.announce();
        know_ranks(args, known);
        __syncthreads();  // a block reads what it has sent to itself
        if (args.phases & kReceive) receive_steps<T, Out>(args, few, known);
        return;
    }
    const i64 stages = most_stages(tokens, args.shuffle.team.size);
    const Gang senders(args.phases, kSend, kCombineSending, stages), receivers(args.phases, kReceive, kCombineSending, stages);
    const Signals signals{args.shuffle.team, few.epoch};
    if ((args.phases & kSend) && senders.has_me()) send_stages<T, Transform>(args, senders, signals, tokens, lists);
    if ((args.phases & kReceive) && receivers.has_me())
        receive_stages<T, Out>(args, receivers, signals, lists.parts[warp]);
}

template <class T, class Out, class Transform = NoTransform>
__global__ void __launch_bounds__(kMaxThreads, 1) combine(const __grid_constant__ CombineArgs args) {
    __shared__ CombineLists lists;
    __shared__ Known known;
    __shared__ Slots slots;
    __shared__ i64 tokens[kMaxRanks];
    const Shuffle& shuffle = args.shuffle;
    const Steps steps{shuffle, packs_of<T>(shuffle.hidden)};
    const bool sends = args.phases & kSend, hurries = sends && steps.are_few(args.token_count);
    const u32 early = hurries && threadIdx.x < few_choices(shuffle) ? few_way(args, threadIdx.x) : kNoWay;
    if (int(threadIdx.x) < shuffle.team.size) tokens[threadIdx.x] = args.token_counts[threadIdx.x];
    Channel channel(shuffle.team, sends, false);
    if (sends) scrub_own_slots(shuffle, channel);
    const FewTokens few{steps, channel.epoch, slots};
    few.find_slots();
    if (hurries) know_rows(args, early, known);
    __syncthreads();
    const bool all_few = few.all_have(tokens);
    if (sends && !all_few) channel.announce();
    // As packets once their slots are free; else once nobody adds what came last time.
    const bool ok = !sends || channel.await_entered(all_few ? 1 : 0);
    if (ok) move<T, Out, Transform>(args, few, channel, tokens, known, lists);
    channel.leave(ok && sends && !all_few);
}
