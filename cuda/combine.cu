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

// Packs that a thread has on their way: kPacks of each of kRows rows. A rank has two rows of most tokens, and parts of
// a token's sum come from most ranks.
template <int packs, int rows>
struct AtOnce {
    static constexpr int kPacks = packs, kRows = rows;
};
using Folding = AtOnce<4, 2>;
using Adding = AtOnce<2, 4>;
using One = AtOnce<1, 2>;

struct Aligned {  // rows that begin at multiples of 16
    static __device__ __forceinline__ Pack load(const char* from) { return get_pack(reinterpret_cast<const Pack*>(from)); }
};
struct Unaligned {
    static __device__ __forceinline__ Pack load(const char* from) { return load_bytes(from, kPackNbytes); }
};

// Adds packs of some rows, with weights, in their order: in each row pack i, i + stride …
template <class T, class Shape>
struct Sums {
    float sums[Shape::kPacks][Elements<T>::kCount] = {};

    // `row(s)` is where row s begins; packs from `end` on are left alone. Of pack i of row s becomes `made(s, i, pack)`.
    template <class Address, class Row, class Weight, class Made>
    __device__ __forceinline__ void add(int rows, u32 i, u32 stride, u32 end, Row row, Weight weight, Made made) {
#pragma unroll 1
        for (int begin = 0; begin < rows; begin += Shape::kRows) {
            Pack packs[Shape::kRows][Shape::kPacks];
            float factors[Shape::kRows];
#pragma unroll
            for (int s = 0; s < Shape::kRows; ++s) {
                const char* from = row(begin + s < rows ? begin + s : begin);
                factors[s] = weight(begin + s < rows ? begin + s : begin);
#pragma unroll
                for (int p = 0; p < Shape::kPacks; ++p)
                    if (begin + s < rows && i + p * stride < end)
                        packs[s][p] = Address::load(from + (i + p * stride) * kPackNbytes);
            }
#pragma unroll
            for (int s = 0; s < Shape::kRows; ++s)
                if (begin + s < rows)
#pragma unroll
                    for (int p = 0; p < Shape::kPacks; ++p)
                        add(p, made(begin + s, i + p * stride, packs[s][p]), factors[s]);
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
        for (int e = 0; e < Elements<T>::kCount; e += 2) round_pair(sums[p][e], sums[p][e + 1], elements.values + e);
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
            for (int e = 0; e < kEach; e += 2)
                round_pair(sums[p][o * kEach + e], sums[p][o * kEach + e + 1], elements.values + e);
            store_pack(out, i * kOut + o, nbytes, pack_of(elements));
        }
    }
};

struct Known {  // what is read of few tokens before any is sent; [size][few_tokens * k]: of the choices of all ranks
    u32 ways[kMostFewChoices];
    float weights[kMostFewChoices];
    u32 ranks[kMostFewChoices];  // that have rows of a token of this rank, as bits
};

struct CombineLists {  // of each warp, in shared memory
    Rows rows[kMaxWarps];
    float weights[kMaxWarps][kMaxChoices];
    const char* parts[kMaxWarps][kMaxRanks];  // what comes back of a token
};

__device__ __forceinline__ float weight_of(const CombineArgs& args, u32 row) { return args.weighted ? args.row_weights[row] : 1.0f; }

// The rows of a token of `source` here, and their weights.
__device__ __forceinline__ int list_rows(const CombineArgs& args, int source, i64 token, CombineLists& lists) {
    const u32 warp = threadIdx.x / 32;
    const u32* ways = args.ways + (source * args.shuffle.max_tokens + token) * args.shuffle.k;
    return lists.rows[warp].list(
        int(args.shuffle.k), [&](int c) { return ways[c]; },
        [&](int number, int, u32 row) { lists.weights[warp][number] = weight_of(args, row); });
}

// Packs i, i + stride … of the sum over a token's rows here.
template <class T, class Shape, class Address, class Transform>
__device__ __forceinline__ Sums<T, Shape> folded(const CombineArgs& args, const CombineLists& lists, int count, u32 i, u32 stride) {
    const u32 packs = u32(packs_of<T>(args.shuffle.hidden)), warp = threadIdx.x / 32;
    Sums<T, Shape> sums;
    sums.template add<Address>(
        count, i, stride, packs,
        [&](int s) { return args.results + u64(lists.rows[warp].row[s]) * packs * kPackNbytes; },
        [&](int s) { return lists.weights[warp][s]; },
        [&](int s, u32 pack_number, Pack pack) {
            const i64 row = lists.rows[warp].row[s], column = i64(pack_number) * Elements<T>::kCount;
            return pack_number < packs ? Transform::template pack<T>(args.transform, pack, row, column) : pack;
        });
    return sums;
}

// Few tokens

// Where choice `j` of those that few tokens have on all ranks is here; what there is of no token may be anything.
__device__ __forceinline__ u32 few_way(const CombineArgs& args, u32 j) {
    const u32 each = u32(args.shuffle.few_tokens * args.shuffle.k), source = j / each;
    return args.ways[source * args.shuffle.max_tokens * args.shuffle.k + (j - source * each)];
}

__device__ __forceinline__ u32 few_choices(const Shuffle& shuffle) {
    return u32(shuffle.team.size) * u32(shuffle.few_tokens) * u32(shuffle.k);
}

// Ways and weights of few tokens, by all threads at once; `early` is the way of the choice with the thread's number.
__device__ void know_rows(const CombineArgs& args, u32 early, Known& known) {
    for (u32 j = threadIdx.x; j < few_choices(args.shuffle); j += blockDim.x) {
        const u32 way = j < blockDim.x ? early : few_way(args, j);
        known.ways[j] = way;
        known.weights[j] = way < args.shuffle.capacity ? weight_of(args, way) : 0.0f;
    }
}

// From which ranks results of this rank's tokens come.
__device__ void know_ranks(const CombineArgs& args, Known& known) {
    for (u32 token = threadIdx.x; token < u32(args.token_count); token += blockDim.x) {
        u32 ranks = 0;
        for (u32 c = 0; c < u32(args.shuffle.k); ++c) {
            const u64 route = args.routes[token * u32(args.shuffle.k) + c];
            if (route != kNoRow) ranks |= 1u << route_rank(route);
        }
        known.ranks[token] = ranks;
    }
}

template <class T, class Transform>
__device__ void send_steps(
    const CombineArgs& args, const FewTokens& few, const i64* tokens, const Known& known, CombineLists& lists) {
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, k = u32(args.shuffle.k);
    few.share(tokens, [&](int source, const FewTokens::Step& step) {
        const u32 first = (u32(source) * u32(args.shuffle.few_tokens) + u32(step.token)) * k;
        const u64 i = step.first + lane;
        const int count = lists.rows[warp].list(
            int(k), [&](int c) { return known.ways[first + c]; },
            [&](int number, int c, u32) { lists.weights[warp][number] = known.weights[first + c]; });
        if (count == 0 || i >= few.row_packs) return;
        const auto sum = is_aligned(args.results) ? folded<T, One, Aligned, Transform>(args, lists, count, u32(i), 0)
                                                  : folded<T, One, Unaligned, Transform>(args, lists, count, u32(i), 0);
        few.send(source, step.position + 2 * lane, sum.rounded(0));
    });
}

// Adds up the steps that come back for this rank's tokens.
template <class T, class Out>
__device__ void receive_steps(const CombineArgs& args, const FewTokens& few, const Known& known) {
    const Shuffle& shuffle = args.shuffle;
    const u32 lane = threadIdx.x % 32;
    const u64 nbytes = u64(shuffle.hidden) * sizeof(Out);
    for (u32 job = threadIdx.x / 32; job < few.jobs(args.token_count); job += blockDim.x / 32) {
        const FewTokens::Step step = few.step(job);
        const u64 i = step.first + lane;
        const u32 ranks = known.ranks[step.token];
        Sums<T, One> sums;
        bool ok = i < few.row_packs;
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

// Sends what a token's rows here add up to.
template <class T, class Shape, class Address, class Transform>
__device__ __forceinline__ void send_sum(const CombineArgs& args, const Crew& crew, const CombineLists& lists, int count, Pack* to) {
    const u32 packs = u32(packs_of<T>(args.shuffle.hidden));
    for (u32 i = crew.member; i < packs; i += Shape::kPacks * crew.members) {
        const auto sums = folded<T, Shape, Address, Transform>(args, lists, count, i, crew.members);
#pragma unroll
        for (int p = 0; p < Shape::kPacks; ++p)
            if (i + p * crew.members < packs) put_pack(to + i + p * crew.members, sums.rounded(p));
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
    for (u32 i = crew.member; i < packs; i += Adding::kPacks * crew.members) {
        Sums<T, Adding> sums;
        sums.template add<Aligned>(
            __popc(present), i, crew.members, packs, [&](int s) { return parts[s]; }, [](int) { return 1.0f; },
            [](int, u32, Pack pack) { return pack; });
#pragma unroll
        for (int p = 0; p < Adding::kPacks; ++p)
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
    const Gang senders(args.phases, kSend, stages), receivers(args.phases, kReceive, stages);
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
