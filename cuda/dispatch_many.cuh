// A dispatch of many tokens: from the ranks' counts follows where rows belong; some of the warps store them there, stage by
// stage, while the others complete what has come.
#pragma once
#include "counting.cuh"
#include "dispatch_few.cuh"

constexpr u32 kDispatchSending = kMaxWarps / 2;  // warps; the others complete what has come

// Where the rows of this block's tokens belong: `routes`. False: leave.
__device__ bool find_rows(const DispatchArgs& args, Table& table, Channel& channel) {
    const Shuffle& shuffle = args.shuffle;
    const Range range(args.token_count);
    const WarpChoices mine(shuffle, table, range);
    const bool alone = args.token_count * shuffle.k <= shuffle.alone_choices;
    clear_counting(shuffle, table);
    index_tokens(args, mine);
    if (alone) count_alone(args, table, range);
    __syncthreads();
    add_warps(shuffle, table, alone ? nullptr : shuffle.histograms + blockIdx.x * shuffle.buckets);
    if (!alone) {
        const Signals signals{shuffle.team, channel.epoch};
        signals.say_counted();
        if (!signals.await_counted()) return false;
        add_blocks(shuffle, table);
    }
    Packets packets(channel);
    if (!exchange_counts(shuffle, table, packets)) return false;
    place_buckets(shuffle, table, [&](int b) { return table.sum[b]; });
    finish_routes(args, table, mine);
    return true;
}

// Tells all ranks what they have of a token's choice.
__device__ __forceinline__ void tell_way(const Shuffle& shuffle, i64 token, int c, u64 route, float weight) {
    const int me = shuffle.team.rank, target = route == kNoRow ? -1 : route_rank(route);
#pragma unroll 4
    for (int rank = 0; rank < shuffle.team.size; ++rank)
        shuffle.ways_of(rank, me, token)[c] = rank == target ? route_row(route) : kNoWay;
    if (target >= 0) shuffle.notes_of(target, me, token)[c] = make_note(place_local(route_place(route)), weight);
}

// Where the data of a token goes, once to each rank; with `tells` the ranks are told what they have of it. All lanes of a
// warp. Returns how many leaders there are.
__device__ int list_leaders(const DispatchArgs& args, i64 token, u64 packs, bool tells, Leader* leaders) {
    const Shuffle& shuffle = args.shuffle;
    const int k = int(shuffle.k), lane = int(threadIdx.x % 32);
    int count = 0;
    __syncwarp();  // those of the last token have been used
#pragma unroll 1
    for (int begin = 0; begin < k; begin += 32) {
        const int c = begin + lane;
        const u64 route = c < k ? args.routes[token * k + c] : kNoRow;
        const float weight = tells && args.weights && c < k ? args.weights[token * k + c] : 1.0f;
        const int rank = route == kNoRow ? -1 : route_rank(route);
        const u32 same = __match_any_sync(0xffffffffu, rank);
        bool leads = rank >= 0 && (same & ((1u << lane) - 1)) == 0;
        for (int l = 0; l < count; ++l) leads = leads && leaders[l].rank != rank;  // by an earlier choice
        const u32 leading = __ballot_sync(0xffffffffu, leads);
        if (leads) {
            Leader& leader = leaders[count + __popc(leading & ((1u << lane) - 1))];
            leader.row = reinterpret_cast<Pack*>(shuffle.rows[rank]) + route_row(route) * packs;
            leader.scales = reinterpret_cast<float*>(shuffle.scales[rank]) + route_row(route) * groups_of(shuffle);
            leader.rank = rank;
        }
        count += __popc(leading);
        if (tells && c < k) tell_way(shuffle, token, c, route, weight);
        __syncwarp();
    }
    return count;
}

// Stores a token's data in its leaders' rows, kUnroll packs of a thread at a time. `list` says how many leaders there are, once
// the first data is on its way.
template <u32 kUnroll, class From, class To, class Transform, class List>
__device__ void store_token(const DispatchArgs& args, const Crew& crew, i64 token, const Leader* leaders, List list) {
    const u32 packs = u32(packs_of<To>(args.shuffle.hidden)), lane = threadIdx.x % 32;
    const char* from = args.tokens + token * args.shuffle.hidden * sizeof(From);
    const bool aligned = is_aligned(args.tokens);
    int count = -1;
    for (u32 first = crew.member - lane; first < packs; first += kUnroll * crew.members) {  // alike in all lanes
        Source<From, To> sources[kUnroll];
#pragma unroll
        for (u32 u = 0; u < kUnroll; ++u)
            if (aligned && first + u * crew.members + lane < packs) sources[u].load(from, first + u * crew.members + lane, true);
#pragma unroll
        for (u32 u = 0; u < kUnroll; ++u)
            if (!aligned && first + u * crew.members + lane < packs) sources[u].load(from, first + u * crew.members + lane, false);
        if (count < 0) count = list();
#pragma unroll
        for (u32 u = 0; u < kUnroll; ++u)
            if (first + u * crew.members + lane < packs)
                sources[u].template transform<Transform>(args.transform, token, first + u * crew.members + lane);
        Pack moved[kUnroll];
        float scales[kUnroll] = {};
#pragma unroll
        for (u32 u = 0; u < kUnroll; ++u) moved[u] = Cast<From, To>::round(sources[u], scales[u]);
#pragma unroll 1
        for (int leader = 0; leader < count; ++leader) {
            const Leader to = leaders[leader];
#pragma unroll
            for (u32 u = 0; u < kUnroll; ++u) {
                const u32 i = first + u * crew.members + lane;
                if (i < packs) put_pack(to.row + i, moved[u]);
                if (i < packs && begins_group<To>(i)) to.scales[i / kGroupLanes] = scales[u];
            }
        }
    }
}

template <class From, class To, class Transform>
__device__ void store_stages(const DispatchArgs& args, const Gang& gang, const Signals& signals, Leader* leaders) {
    constexpr u32 kAtOnce = Source<From, To>::kPacks > 2 ? 2 : 7;
    const Shuffle& shuffle = args.shuffle;
    const Range range(args.token_count);
    for (i64 stage = 0; stage < range.stages(); ++stage) {
        const i64 begin = range.begin + stage * kStageTokens;
        const u32 jobs = u32(smaller(u64(range.end - begin), kStageTokens));
        const Crew crew = gang.crew(jobs);
        const bool many = packs_of<To>(shuffle.hidden) > 2 * crew.members;  // else short code is there sooner
        for (u32 job = crew.first_job; job < jobs; job += crew.next_job) {
            const bool tells = !args.reuse && crew.member < 32;
            const auto list = [&] { return list_leaders(args, begin + job, packs_of<To>(shuffle.hidden), tells, leaders); };
            if (many) store_token<kAtOnce, From, To, Transform>(args, crew, begin + job, leaders, list);
            else store_token<1, From, To, Transform>(args, crew, begin + job, leaders, list);
        }
        gang.everyone(true);
        signals.say_stored(gang, stage + 1);
    }
}

// Copies what a leader has to the token's other rows here, kUnroll packs of a thread at a time.
template <int kUnroll, class To>
__device__ void copy_on(const Shuffle& shuffle, const Crew& crew, const u32* rows, int count) {
    const u64 packs = packs_of<To>(shuffle.hidden), groups = groups_of(shuffle);
    Pack* data = reinterpret_cast<Pack*>(shuffle.rows[shuffle.team.rank]);
    float* scales = reinterpret_cast<float*>(shuffle.scales[shuffle.team.rank]);
    for (u64 first = crew.member; first < packs; first += kUnroll * crew.members) {
        Pack moved[kUnroll];
#pragma unroll
        for (int u = 0; u < kUnroll; ++u)
            if (first + u * crew.members < packs) moved[u] = get_pack(data + rows[0] * packs + first + u * crew.members);
#pragma unroll 1
        for (int r = 1; r < count; ++r) {
            Pack* to = data + rows[r] * packs + first;
#pragma unroll
            for (int u = 0; u < kUnroll; ++u)
                if (first + u * crew.members < packs) to[u * crew.members] = moved[u];
        }
    }
    for (u64 i = crew.member; sizeof(To) == sizeof(Float8) && i < groups; i += crew.members) {
        const float scale = scales[rows[0] * groups + i];
#pragma unroll 1
        for (int r = 1; r < count; ++r) scales[rows[r] * groups + i] = scale;
    }
}

// A token of `source` has come: hand out what is known of its rows, complete them.
template <class To>
__device__ void deliver(const DispatchArgs& args, const Crew& crew, int source, i64 token, Rows& list) {
    const Shuffle& shuffle = args.shuffle;
    const int k = int(shuffle.k), me = shuffle.team.rank;
    u32* known = args.ways + (source * shuffle.max_tokens + token) * k;
    const u32* told = shuffle.ways_of(me, source, token);
    const u64* notes = shuffle.notes_of(me, source, token);
    u64 note = 0;
    const auto way = [&](int c) {
        if (args.reuse) return known[c];
        const u32 row = ld_relaxed_sys(told + c);
        note = ld_relaxed_sys(notes + c);  // on its way together with the row
        if (crew.member < 32) known[c] = row;
        return row;
    };
    const int count = list.list(k, way, [&](int, int, u32 row) {
        if (args.reuse || crew.member >= 32) return;
        args.row_experts[row] = int(note_local(note));
        args.row_weights[row] = note_weight(note);
    });
    if (count < 2) return;
    if (packs_of<To>(shuffle.hidden) > 2 * crew.members) copy_on<8, To>(shuffle, crew, list.row, count);
    else copy_on<2, To>(shuffle, crew, list.row, count);
}

template <class To>
__device__ void deliver_stages(
    const DispatchArgs& args, const Gang& gang, const Signals& signals, const i64* tokens, Rows& list) {
    const int size = args.shuffle.team.size;
    for (i64 number = 0; number < most_stages(tokens, size); ++number) {
        const auto needed = [&](int source) { return number < Range(tokens[source]).stages() ? number + 1 : 0; };
        if (!signals.await_stored(gang, needed)) return;
        const Stage stage{0, size, tokens, number};
        const u32 jobs = stage.jobs();
        const Crew crew = gang.crew(jobs);
        for (u32 job = crew.first_job; job < jobs; job += crew.next_job) {
            int source = 0;
            i64 token = 0;
            if (stage.find(job, source, token)) deliver<To>(args, crew, source, token, list);
        }
    }
}

template <class From, class To, class Transform>
__device__ void move_many(const DispatchArgs& args, u32 epoch, const Table& table, DispatchList* lists) {
    const i64 stages = most_stages(table.tokens, args.shuffle.team.size);
    const Gang senders(args.phases, kSend, kDispatchSending, stages), receivers(args.phases, kReceive, kDispatchSending, stages);
    const Signals signals{args.shuffle.team, epoch};
    const u32 warp = threadIdx.x / 32;
    if ((args.phases & kSend) && senders.has_me())
        store_stages<From, To, Transform>(args, senders, signals, lists[warp].leaders);
    if ((args.phases & kReceive) && receivers.has_me())
        deliver_stages<To>(args, receivers, signals, table.tokens, lists[warp].rows);
}
