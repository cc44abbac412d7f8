// Combine: the results of a token's rows come back to its rank, added up.
//
// The sum has a fixed order, whatever the run or the layout of the rows: a rank adds weight * result over the
// token's rows that it has, in the order of the choices, in single precision, rounds to the type of the results and
// sends it; the token's rank adds what comes, in rank order, in single precision, and rounds once more. So a token's
// results travel once from each rank, as its data did: as packets, if all ranks have few tokens (few_tokens.cuh), else
// to their places, while half of the warps add up what has come.
#include "few_tokens.cuh"
#include "row_transform.cuh"

struct CombineArgs {
    Shuffle shuffle;
    const char* results;  // [capacity] rows
    const u32* ways;      // of the dispatch, as the following
    const i64* token_counts;
    const float* row_weights;
    const u64* routes;
    char* out;  // [token_count] rows
    i64 token_count;
    i64 weighted;  // 0: a plain sum
    TransformArgs transform;  // of results
    i64 phases;
};

constexpr int kPacksAtOnce = 3, kRowsAtOnce = 2;  // that a thread has on their way

// Adds packs of some rows, with weights, in their order: in each row pack i, i + stride …
template <class T, int kPacks>
struct Sums {
    float sums[kPacks][Elements<T>::kCount] = {};

    // `row(s)` is where row s begins, at a multiple of 16 if `aligned`; packs from `end` on are left alone. `made(s, i, pack)`
    // is what becomes of pack i.
    template <class Row, class Made, class Weight>
    __device__ __forceinline__ void add(
        int rows, u32 i, u32 stride, u32 end, bool aligned, Row row, Made made, Weight weight) {
#pragma unroll 1
        for (int s = 0; !aligned && s < rows; ++s)
#pragma unroll
            for (int p = 0; p < kPacks; ++p)
                if (i + p * stride < end) {
                    const Pack pack = load_bytes(row(s) + (i + p * stride) * kPackNbytes, kPackNbytes);
                    add(p, made(s, i + p * stride, pack), weight(s));
                }
#pragma unroll 1
        for (int begin = 0; aligned && begin < rows; begin += kRowsAtOnce) {
            Pack packs[kRowsAtOnce][kPacks];
#pragma unroll
            for (int s = 0; s < kRowsAtOnce; ++s) {
                const char* from = row(begin + s < rows ? begin + s : begin);
#pragma unroll
                for (int p = 0; p < kPacks; ++p)
                    if (begin + s < rows && i + p * stride < end)
                        packs[s][p] = get_pack(reinterpret_cast<const Pack*>(from) + i + p * stride);
            }
#pragma unroll
            for (int s = 0; s < kRowsAtOnce; ++s)
                if (begin + s < rows) {
                    const float factor = weight(begin + s);
#pragma unroll
                    for (int p = 0; p < kPacks; ++p)
                        add(p, made(begin + s, i + p * stride, packs[s][p]), factor);
                }
        }
    }

    __device__ __forceinline__ void add(int p, Pack pack, float factor) {
        const Elements<T> part = elements_of<T>(pack);
#pragma unroll
        for (int e = 0; e < Elements<T>::kCount; ++e) sums[p][e] += factor * float(part.values[e]);
    }

    __device__ __forceinline__ Pack rounded(int p) const {
        Elements<T> elements;
#pragma unroll
        for (int e = 0; e < Elements<T>::kCount; ++e) elements.values[e] = T(sums[p][e]);
        return pack_of(elements);
    }

    // Stores pack `i` of a row of Out's.
    template <class Out>
    __device__ __forceinline__ void store(int p, char* out, u64 i, u64 nbytes) const {
        constexpr int kOut = sizeof(Out) / sizeof(T), kEach = Elements<Out>::kCount;
#pragma unroll
        for (int o = 0; o < kOut; ++o) {
            Elements<Out> elements;
#pragma unroll
            for (int e = 0; e < kEach; ++e) elements.values[e] = Out(sums[p][o * kEach + e]);
            store_pack(out, i * kOut + o, nbytes, pack_of(elements));
        }
    }
};

struct CombineLists {  // of each warp, in shared memory
    Rows rows[kMaxWarps];
    float weights[kMaxWarps][kMaxChoices];
    const char* parts[kMaxWarps][kMaxRanks];  // what comes back of a token
};

// The rows of a token of `source` here, and their weights.
__device__ __forceinline__ int list_rows(const CombineArgs& args, int source, i64 token, CombineLists& lists) {
    const u32 warp = threadIdx.x / 32;
    const u32* ways = args.ways + (source * args.shuffle.max_tokens + token) * args.shuffle.k;
    const int count = lists.rows[warp].list(int(args.shuffle.k), [&](int c) { return ways[c]; });
    for (int s = int(threadIdx.x % 32); s < count; s += 32)
        lists.weights[warp][s] = args.weighted ? args.row_weights[lists.rows[warp].row[s]] : 1.0f;
    __syncwarp();
    return count;
}

// Packs i, i + stride … of the sum over a token's rows here.
template <class T, int kPacks, class Transform>
__device__ __forceinline__ Sums<T, kPacks> folded(const CombineArgs& args, const CombineLists& lists, int count, u32 i, u32 stride) {
    const u32 packs = u32(packs_of<T>(args.shuffle.hidden)), warp = threadIdx.x / 32;
    Sums<T, kPacks> sums;
    sums.add(
        count, i, stride, packs, is_aligned(args.results),
        [&](int s) { return args.results + u64(lists.rows[warp].row[s]) * packs * kPackNbytes; },
        [&](int s, u32 i, Pack pack) {
            const i64 row = lists.rows[warp].row[s], column = i64(i) * Elements<T>::kCount;
            return i < packs ? Transform::template pack<T>(args.transform, pack, row, column) : pack;
        },
        [&](int s) { return lists.weights[warp][s]; });
    return sums;
}

// Few tokens

template <class T, class Transform>
__device__ void send_steps(const CombineArgs& args, const FewTokens& few, const i64* tokens, CombineLists& lists) {
    const u32 lane = threadIdx.x % 32;
    few.share(tokens, [&](int source, u32 job) {
        const FewTokens::Step step = few.step(job);
        const u64 i = step.first + lane;
        const int count = list_rows(args, source, step.token, lists);
        if (count == 0 || i >= few.row_packs) return;
        few.send(source, step.position + 2 * lane, folded<T, 1, Transform>(args, lists, count, u32(i), 0).rounded(0));
    });
}

// Adds up the steps that come back for this rank's tokens.
template <class T, class Out>
__device__ void receive_steps(const CombineArgs& args, const FewTokens& few) {
    const Shuffle& shuffle = args.shuffle;
    const u32 lane = threadIdx.x % 32;
    const u64 nbytes = u64(shuffle.hidden) * sizeof(Out);
    for (u32 job = threadIdx.x / 32; job < few.jobs(args.token_count); job += blockDim.x / 32) {
        const FewTokens::Step step = few.step(job);
        const u64 i = step.first + lane;
        const u64* routes = args.routes + step.token * shuffle.k;
        Sums<T, 1> sums;
        bool ok = i < few.row_packs;
        u32 ranks = 0;
        for (int c = 0; c < shuffle.k; ++c)
            if (routes[c] != kNoRow) ranks |= 1u << route_rank(routes[c]);
        for (int rank = 0; ok && rank < shuffle.team.size; rank += kSourcesAtOnce) {
            Pack packs[kSourcesAtOnce];
            ok = few.receive_each(ranks, rank, step.position + 2 * lane, packs);
#pragma unroll
            for (int s = 0; s < kSourcesAtOnce; ++s)
                if (ok && (ranks >> (rank + s) & 1)) sums.add(0, packs[s], 1.0f);
        }
        if (ok) sums.template store<Out>(0, args.out + step.token * nbytes, i, nbytes);
    }
}

// Many tokens

// Sends what this block's rows add up to where their tokens came from.
template <class T, class Transform>
__device__ void send_stages(
    const CombineArgs& args, const Gang& gang, const Signals& signals, const i64* tokens, CombineLists& lists) {
    const Shuffle& shuffle = args.shuffle;
    const int size = shuffle.team.size, me = shuffle.team.rank;
    const u32 packs = u32(packs_of<T>(shuffle.hidden));
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
            for (u32 i = crew.member; i < packs; i += kPacksAtOnce * crew.members) {
                const auto sums = folded<T, kPacksAtOnce, Transform>(args, lists, count, i, crew.members);
#pragma unroll
                for (int p = 0; p < kPacksAtOnce; ++p)
                    if (i + p * crew.members < packs) put_pack(to + i + p * crew.members, sums.rounded(p));
            }
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
    for (u32 i = crew.member; i < packs; i += kPacksAtOnce * crew.members) {
        Sums<T, kPacksAtOnce> sums;
        sums.add(
            __popc(present), i, crew.members, packs, true, [&](int s) { return parts[s]; },
            [](int, u32, Pack pack) { return pack; }, [](int) { return 1.0f; });
#pragma unroll
        for (int p = 0; p < kPacksAtOnce; ++p)
            if (i + p * crew.members < packs)
                sums.template store<Out>(p, args.out + token * nbytes, i + p * crew.members, nbytes);
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
__device__ void move(const CombineArgs& args, const FewTokens& few, const i64* tokens, CombineLists& lists) {
    const u32 warp = threadIdx.x / 32;
    if (few.all_have(tokens)) {
        if (args.phases & kSend) send_steps<T, Transform>(args, few, tokens, lists);
        __syncthreads();  // a block reads what it has sent to itself
        if (args.phases & kReceive) receive_steps<T, Out>(args, few);
        return;
    }
    const Gang senders(args.phases, kSend), receivers(args.phases, kReceive);
    const Signals signals{args.shuffle.team, few.epoch};
    if ((args.phases & kSend) && senders.has_me()) send_stages<T, Transform>(args, senders, signals, tokens, lists);
    if ((args.phases & kReceive) && receivers.has_me())
        receive_stages<T, Out>(args, receivers, signals, lists.parts[warp]);
}

template <class T, class Out, class Transform = NoTransform>
__global__ void __launch_bounds__(kMaxThreads, 1) combine(const __grid_constant__ CombineArgs args) {
    __shared__ CombineLists lists;
    __shared__ i64 tokens[kMaxRanks];
    const Shuffle& shuffle = args.shuffle;
    const bool sends = args.phases & kSend;
    Channel channel(shuffle.team, sends);
    const FewTokens few{shuffle, channel.epoch, packs_of<T>(shuffle.hidden)};
    if (int(threadIdx.x) < shuffle.team.size) tokens[threadIdx.x] = args.token_counts[threadIdx.x];
    __syncthreads();
    // As packets once their slots are free; else once nobody adds what came last time.
    const bool all_few = few.all_have(tokens), ok = !sends || channel.await_entered(all_few ? 1 : 0);
    if (ok) move<T, Out, Transform>(args, few, tokens, lists);
    channel.leave(ok && sends && !all_few);
}
