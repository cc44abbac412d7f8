// Dispatch: every token goes to the ranks of its experts, and lands grouped, ready for the experts.
//
// One launch, whatever the routing; the host knows no count. Rows of a bucket are in the order (source, token, choice).
// If all ranks have few tokens, these travel as packets, with all choices (few_tokens.cuh). Otherwise
//   1. the ranks exchange counts, so that each knows where its rows belong, on whatever rank (buckets.cuh);
//   2. half of the warps store them there, each token once to a rank, with its ways and notes of its rows;
//   3. the others copy a token's data to its other rows as it comes, and hand out ways and notes.
// With a handle of an earlier dispatch (`reuse`) only the data moves.
#include "buckets.cuh"
#include "cast.cuh"

struct DispatchLists {  // of each warp, in shared memory
    Rows rows[kMaxWarps];
    u32 leaders[kMaxWarps][kMaxRanks];  // of a token, on every rank
};

__device__ __forceinline__ u64 groups_of(const Shuffle& shuffle) { return (u64(shuffle.hidden) + kGroup - 1) / kGroup; }

// Few tokens

// Numbers this rank's choices within their buckets, and tells all ranks.
__device__ void send_choices(const DispatchArgs& args, const FewTokens& few, Table& table) {
    const int choices = int(args.token_count * args.shuffle.k);
    int* buckets = table.few.matrix;
    for (int i = int(threadIdx.x); i < choices; i += int(blockDim.x)) {
        u32 place = 0;
        buckets[i] = bucket_of_choice(args, i, place);
        const float weight = args.weights ? args.weights[i] : 1.0f;
        table.few.words[i] = buckets[i] < 0 ? kNoRow : choice_word(place, 0, weight);
    }
    __syncthreads();
    for (int i = int(threadIdx.x); i < choices; i += int(blockDim.x)) {
        u32 number = 0;
        for (int j = 0; j < i; ++j) number += buckets[j] == buckets[i];
        const u64 word = table.few.words[i];
#pragma unroll 1
        for (int rank = 0; rank < args.shuffle.team.size; ++rank)
            few.send_word(rank, 1 + u32(i), is_choice(word) ? word + number : word);
    }
}

// The same of an earlier dispatch, for this rank alone.
__device__ void recall_choices(const DispatchArgs& args, Table& table) {
    for (int i = int(threadIdx.x); i < int(args.token_count * args.shuffle.k); i += int(blockDim.x))
        table.few.words[i] = args.routes[i] == kNoRow ? kNoRow : choice_word(route_place(args.routes[i]), 0, 0.0f);
    __syncthreads();
}

template <class From, class To>
__device__ void send_steps(const DispatchArgs& args, const FewTokens& few, const Table& table) {
    const Shuffle& shuffle = args.shuffle;
    const u32 lane = threadIdx.x % 32;
    const u64 nbytes = u64(shuffle.hidden) * sizeof(From);
    for (u32 job = threadIdx.x / 32; job < few.jobs(args.token_count); job += blockDim.x / 32) {
        const FewTokens::Step step = few.step(job);
        const u64 i = step.first + lane;
        Source<From, To> source;
        if (i < few.row_packs) source.load(args.tokens + step.token * nbytes, i, nbytes);
        u32 ranks = 0;
#pragma unroll 1
        for (int c = 0; c < shuffle.k; ++c) {
            const u64 word = table.few.words[step.token * shuffle.k + c];
            if (is_choice(word)) ranks |= 1u << place_rank(choice_place(word));
        }
        float scale = 0;
        const Pack pack = Cast<From, To>::round(source, scale);
#pragma unroll 1
        for (int rank = 0; i < few.row_packs && rank < shuffle.team.size; ++rank) {
            if ((ranks >> rank & 1) == 0) continue;
            few.send(rank, step.position + 2 * lane, pack);
            if (begins_group<To>(i))
                few.send_word(rank, step.position + 2 * kStepPacks + lane / kGroupLanes, bits_as<u32>(scale));
        }
    }
}

// Receives all ranks' choices, counts them, and finds out where the buckets begin.
__device__ bool receive_choices(const Shuffle& shuffle, const FewTokens& few, Table& table) {
    const int each = int(shuffle.few_tokens * shuffle.k), buckets = int(shuffle.buckets);
    int* matrix = table.few.matrix;
    for (int i = int(threadIdx.x); i < shuffle.team.size * buckets; i += int(blockDim.x)) matrix[i] = 0;
    __syncthreads();
    bool ok = true;
    for (int j = int(threadIdx.x); ok && j < each * shuffle.team.size; j += int(blockDim.x)) {
        const int source = j / each, i = j % each;
        if (i >= table.tokens[source] * shuffle.k) continue;
        u64 word = 0;
        ok = few.receive_word(source, 1 + u32(i), word);
        table.few.words[j] = word;
        if (ok && is_choice(word)) atomicAdd(&matrix[source * buckets + bucket_of(shuffle, choice_place(word))], 1);
    }
    ok = Channel::everyone(ok);
    for (int b = int(threadIdx.x); b < buckets; b += int(blockDim.x)) {
        table.sum[b] = 0;
        for (int source = 0; source < shuffle.team.size; ++source) table.sum[b] += matrix[source * buckets + b];
    }
    __syncthreads();
    if (ok) place_buckets(shuffle, table);
    return ok;
}

// The row that a choice of `source` becomes on its rank; kNoWay: there is no room.
__device__ u32 row_of(const Shuffle& shuffle, const Table& table, int source, u64 word) {
    if (!is_choice(word)) return kNoWay;
    const int bucket = bucket_of(shuffle, choice_place(word));
    int row = table.count[bucket] + int(choice_number(word));
#pragma unroll 1
    for (int before = 0; before < source; ++before) row += table.few.matrix[before * shuffle.buckets + bucket];
    return row < table.limit[bucket] ? u32(row) : kNoWay;
}

// What choice `c` of a token has on this rank.
__device__ u32 few_way(const DispatchArgs& args, const Table& table, int source, i64 token, int c) {
    const Shuffle& shuffle = args.shuffle;
    if (args.reuse) return args.ways[(source * shuffle.max_tokens + token) * shuffle.k + c];
    const u64 word = table.few.words[(source * shuffle.few_tokens + token) * shuffle.k + c];
    if (!is_choice(word) || place_rank(choice_place(word)) != shuffle.team.rank) return kNoWay;
    return row_of(shuffle, table, source, word);
}

// Puts the steps of this block into their rows.
template <class To>
__device__ void receive_steps(const DispatchArgs& args, const FewTokens& few, const Table& table, Rows& list) {
    const Shuffle& shuffle = args.shuffle;
    const int me = shuffle.team.rank;
    const u32 lane = threadIdx.x % 32;
    Pack* rows = reinterpret_cast<Pack*>(shuffle.rows[me]);
    float* scales = reinterpret_cast<float*>(shuffle.scales[me]);
    few.share(table.tokens, [&](int source, u32 job) {
        const FewTokens::Step step = few.step(job);
        const u64 i = step.first + lane;
        const int count = list.list(int(shuffle.k), [&](int c) { return few_way(args, table, source, step.token, c); });
        if (count == 0 || i >= few.row_packs) return;
        Pack pack;
        if (!few.receive(source, step.position + 2 * lane, pack)) return;
#pragma unroll 1
        for (int r = 0; r < count; ++r) rows[list.row[r] * few.row_packs + i] = pack;
        u64 scale = 0;
        if (!begins_group<To>(i)) return;
        if (!few.receive_word(source, step.position + 2 * kStepPacks + lane / kGroupLanes, scale)) return;
#pragma unroll 1
        for (int r = 0; r < count; ++r)
            scales[list.row[r] * groups_of(shuffle) + i / kGroupLanes] = bits_as<float>(u32(scale));
    });
}

// The handle's arrays: ways of all tokens here, experts and weights of the rows, routes of this rank's tokens.
__device__ void write_few(const DispatchArgs& args, const Table& table) {
    const Shuffle& shuffle = args.shuffle;
    const u32 each = u32(shuffle.few_tokens * shuffle.k);
    for (u32 j = blockIdx.x * blockDim.x + threadIdx.x; j < each * u32(shuffle.team.size); j += gridDim.x * blockDim.x) {
        const int source = int(j / each);
        const u32 i = j % each;
        if (i >= table.tokens[source] * shuffle.k) continue;
        const u64 word = table.few.words[j];
        const u32 row = row_of(shuffle, table, source, word);
        const bool here = row != kNoWay && place_rank(choice_place(word)) == shuffle.team.rank;
        args.ways[source * shuffle.max_tokens * shuffle.k + i] = here ? row : kNoWay;
        if (here) {
            args.row_experts[row] = int(place_local(choice_place(word)));
            args.row_weights[row] = choice_weight(word);
        }
        if (source == shuffle.team.rank) args.routes[i] = row == kNoWay ? kNoRow : make_route(row, choice_place(word));
    }
}

template <class To>
__device__ bool receive_few(const DispatchArgs& args, const FewTokens& few, Table& table, DispatchLists& lists) {
    const Shuffle& shuffle = args.shuffle;
    if (!args.reuse && !receive_choices(shuffle, few, table)) return false;
    receive_steps<To>(args, few, table, lists.rows[threadIdx.x / 32]);
    if (args.reuse) return true;
    write_few(args, table);
    if (is_scribe())
        write_counts(args, table, [&](int source, int b) { return table.few.matrix[source * shuffle.buckets + b]; });
    return true;
}

// Many tokens

// Where the rows of this block's tokens belong: `routes`. False: leave.
__device__ bool find_rows(const DispatchArgs& args, Table& table, Channel& channel) {
    const Shuffle& shuffle = args.shuffle;
    const Range range(args.token_count);
    index_tokens(args, table, range);
    const Signals signals{shuffle.team, channel.epoch};
    signals.say_counted();
    if (!signals.await_counted()) return false;
    add_blocks(shuffle, table);
    Packets packets(channel);
    if (!exchange_counts(shuffle, table, packets)) return false;
    place_buckets(shuffle, table);
    finish_routes(args, table, range);
    return true;
}

// Tells all ranks what they have of a token.
__device__ void tell_ways(const DispatchArgs& args, const Crew& crew, i64 token) {
    const Shuffle& shuffle = args.shuffle;
    const u32 k = u32(shuffle.k);
    for (u32 i = crew.member; i < k * u32(shuffle.team.size); i += crew.members) {
        const int rank = int(i / k), c = int(i % k);
        const u64 route = args.routes[token * k + c];
        const bool there = route != kNoRow && route_rank(route) == rank;
        shuffle.ways_of(rank, shuffle.team.rank, token)[c] = there ? route_row(route) : kNoWay;
        if (!there) continue;
        const float weight = args.weights ? args.weights[token * k + c] : 1.0f;
        reinterpret_cast<u64*>(shuffle.notes[rank])[route_row(route)] = make_note(place_local(route_place(route)), weight);
    }
}

// Stores a token's data in its leaders' rows.
template <class From, class To>
__device__ void store_token(const DispatchArgs& args, const Crew& crew, i64 token, const u32* leaders) {
    constexpr int kUnroll = Source<From, To>::kPacks > 2 ? 2 : 4;
    const Shuffle& shuffle = args.shuffle;
    const u64 packs = packs_of<To>(shuffle.hidden), nbytes = u64(shuffle.hidden) * sizeof(From), lane = threadIdx.x % 32;
    const char* from = args.tokens + token * nbytes;
    for (u64 first = crew.member - lane; first < packs; first += kUnroll * crew.members) {  // alike in all lanes
        Source<From, To> sources[kUnroll];
#pragma unroll
        for (int u = 0; u < kUnroll; ++u)
            if (first + u * crew.members + lane < packs) sources[u].load(from, first + u * crew.members + lane, nbytes);
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
            if (first + u * crew.members >= packs) break;
            const u64 i = first + u * crew.members + lane;
            float scale = 0;
            const Pack pack = Cast<From, To>::round(sources[u], scale);
#pragma unroll 1
            for (int rank = 0; i < packs && rank < shuffle.team.size; ++rank) {
                if (leaders[rank] == kNoWay) continue;
                put_pack(reinterpret_cast<Pack*>(shuffle.rows[rank]) + leaders[rank] * packs + i, pack);
                if (begins_group<To>(i))
                    reinterpret_cast<float*>(shuffle.scales[rank])[leaders[rank] * groups_of(shuffle) + i / kGroupLanes] = scale;
            }
        }
    }
}

template <class From, class To>
__device__ void store_stages(const DispatchArgs& args, const Gang& gang, const Signals& signals, u32* leaders) {
    const Shuffle& shuffle = args.shuffle;
    const Range range(args.token_count);
    const int lane = int(threadIdx.x % 32);
    for (i64 stage = 0; stage < range.stages(); ++stage) {
        const i64 begin = range.begin + stage * kStageTokens;
        const u32 jobs = u32(smaller(u64(range.end - begin), kStageTokens));
        const Crew crew = gang.crew(jobs);
        for (u32 job = crew.first_job; job < jobs; job += crew.next_job) {
            const u64* routes = args.routes + (begin + job) * shuffle.k;
            __syncwarp();  // those of the last token have been used
            if (lane < shuffle.team.size) {
                const int leading = leading_choice(routes, int(shuffle.k), lane);
                leaders[lane] = leading < 0 ? kNoWay : route_row(routes[leading]);
            }
            __syncwarp();
            store_token<From, To>(args, crew, begin + job, leaders);
            if (!args.reuse) tell_ways(args, crew, begin + job);
        }
        gang.everyone(true);
        signals.say_stored(gang, stage + 1);
    }
}

// Copies what a leader has to the token's other rows here.
template <class To>
__device__ void copy_on(const Shuffle& shuffle, const Crew& crew, const u32* rows, int count) {
    const u64 packs = packs_of<To>(shuffle.hidden), groups = groups_of(shuffle);
    Pack* data = reinterpret_cast<Pack*>(shuffle.rows[shuffle.team.rank]);
    float* scales = reinterpret_cast<float*>(shuffle.scales[shuffle.team.rank]);
    if (count < 2) return;
    move_packs(
        crew.member, packs, crew.members, [&](u64 i) { return get_pack(data + rows[0] * packs + i); },
        [&](u64 i, Pack pack) {
#pragma unroll 1
            for (int r = 1; r < count; ++r) data[rows[r] * packs + i] = pack;
        });
    for (u64 i = crew.member; sizeof(To) == sizeof(Float8) && i < groups; i += crew.members)
        for (int r = 1; r < count; ++r) scales[rows[r] * groups + i] = scales[rows[0] * groups + i];
}

// A token of `source` has come: hand out what is known of its rows, complete them.
template <class To>
__device__ void deliver(const DispatchArgs& args, const Crew& crew, int source, i64 token, Rows& list) {
    const Shuffle& shuffle = args.shuffle;
    const int k = int(shuffle.k), me = shuffle.team.rank;
    u32* known = args.ways + (source * shuffle.max_tokens + token) * k;
    const u32* told = shuffle.ways_of(me, source, token);
    const int count = list.list(k, [&](int c) { return args.reuse ? known[c] : ld_relaxed_sys(told + c); });
    copy_on<To>(shuffle, crew, list.row, count);
    for (int c = int(crew.member); !args.reuse && c < k; c += int(crew.members)) {
        const u32 row = ld_relaxed_sys(told + c);
        known[c] = row;
        if (row == kNoWay) continue;
        const u64 note = ld_relaxed_sys(reinterpret_cast<const u64*>(shuffle.notes[me]) + row);
        args.row_experts[row] = int(note_local(note));
        args.row_weights[row] = note_weight(note);
    }
}

template <class To>
__device__ void deliver_stages(
    const DispatchArgs& args, const Gang& gang, const Signals& signals, const i64* tokens, Rows& list) {
    const int size = args.shuffle.team.size;
    for (i64 number = 0; number < most_stages(tokens, size); ++number) {
        const auto needed = [&](int source) { return number < Range(tokens[source]).stages() ? number + 1 : 0; };
        if (!signals.await_stored(gang, needed)) return;
        const Stage stage{0, size, tokens, number, size};
        const Crew crew = gang.crew(stage.jobs());
        for (u32 job = crew.first_job; job < stage.jobs(); job += crew.next_job) {
            int source = 0;
            i64 token = 0;
            if (stage.find(job, source, token)) deliver<To>(args, crew, source, token, list);
        }
    }
}

template <class From, class To>
__device__ void move_many(const DispatchArgs& args, u32 epoch, const Table& table, DispatchLists& lists) {
    const Gang senders(args.phases, kSend), receivers(args.phases, kReceive);
    const Signals signals{args.shuffle.team, epoch};
    const u32 warp = threadIdx.x / 32;
    if ((args.phases & kSend) && senders.has_me())
        store_stages<From, To>(args, senders, signals, lists.leaders[warp]);
    if ((args.phases & kReceive) && receivers.has_me())
        deliver_stages<To>(args, receivers, signals, table.tokens, lists.rows[warp]);
}

// Past the rows there is no expert.
__device__ void write_end(const DispatchArgs& args, i64 total) {
    for (i64 row = total + blockIdx.x * blockDim.x + threadIdx.x; row < args.shuffle.capacity; row += gridDim.x * blockDim.x) {
        args.row_experts[row] = -1;
        args.row_weights[row] = 0.0f;
    }
}

// Both

// Tokens leave, if this rank has few of them; all_few: all ranks have. False: leave.
template <class From, class To>
__device__ bool begin(const DispatchArgs& args, const FewTokens& few, Table& table, bool& all_few) {
    const int rank = int(threadIdx.x);
    if (args.reuse && rank < args.shuffle.team.size) table.tokens[rank] = args.token_counts[rank];
    __syncthreads();
    if (!args.reuse && (args.phases & kSend)) few.tell_count(args.token_count);
    all_few = args.reuse ? few.all_have(table.tokens) : args.token_count <= args.shuffle.few_tokens;
    if (all_few && (args.phases & kSend)) {
        args.reuse ? recall_choices(args, table) : send_choices(args, few, table);
        send_steps<From, To>(args, few, table);
    }
    if (args.reuse || !all_few) return true;
    const bool ok = few.learn_counts(table.tokens);
    all_few = few.all_have(table.tokens);
    return ok;
}

// Whatever else there is to do in this launch. False: leave.
template <class From, class To>
__device__ bool move(const DispatchArgs& args, const FewTokens& few, Table& table, DispatchLists& lists, bool all_few) {
    const Shuffle& shuffle = args.shuffle;
    const bool counted = all_few || (args.phases & kSend);  // in this launch
    if (!all_few) {
        const bool learnt = args.reuse || args.token_count <= shuffle.few_tokens;  // by `begin`
        if (!learnt && !few.learn_counts(table.tokens)) return false;
        if ((args.phases & kSend) && is_scribe() && !args.reuse)
            write_counts(args, table, [&](int source, int b) { return shuffle.matrix[source * shuffle.buckets + b]; });
        move_many<From, To>(args, few.epoch, table, lists);
    } else if ((args.phases & kReceive) && !receive_few<To>(args, few, table, lists)) return false;
    if ((args.phases & kReceive) && !args.reuse) write_end(args, counted ? total_of(shuffle, table) : args.total[0]);
    return true;
}

template <class From, class To>
__global__ void __launch_bounds__(kMaxThreads, 1) dispatch(const __grid_constant__ DispatchArgs args) {
    __shared__ Table table;
    __shared__ DispatchLists lists;
    const Shuffle& shuffle = args.shuffle;
    const bool sends = args.phases & kSend;
    Channel channel(shuffle.team, sends);
    const FewTokens few{shuffle, channel.epoch, packs_of<To>(shuffle.hidden)};
    bool all_few = false, ok = !sends || channel.await_entered(1);  // the packets' slots are free
    if (ok) ok = begin<From, To>(args, few, table, all_few);
    if (ok && sends && !all_few) {
        ok = args.reuse || find_rows(args, table, channel);
        if (!channel.await_entered(0)) ok = false;  // who still reads what came last time has not
    }
    if (ok) ok = move<From, To>(args, few, table, lists, all_few);
    channel.leave(ok && sends && !(all_few && args.reuse));
}
