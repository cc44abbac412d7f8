// A dispatch of many tokens: where rows belong follows from the ranks' counts.
//
//   1. find_rows computes the routes of this block's tokens (counting.cuh).
//   2. Some warps store tokens in their leaders' rows, with ways and notes of their choices
//      (store_tokens), and signal stages.
//   3. The others wait for stages, copy the data to the tokens' other rows and write the handle
//      (deliver_tokens); in the end all warps do.
// Signals and the Gate (stages.cuh) order the rows between ranks. kDispatchSending: measured on 2
// H200 (docs/design_notes.md, "Block b of a rank deals with the tokens of block b …").
#pragma once
#include "tokens/counting.cuh"
#include "tokens/dispatch_few.cuh"

constexpr u32 kDispatchSending = 8;  // warps, of kMaxWarps, that send first

// Computes where the rows of this block's tokens belong: `routes`. `is_few`: this rank has few
// tokens, so it begins to count only now. False: leave.
__device__ bool find_rows(
    const DispatchArgs& args, const FewTokens& few, Table& table, const Channel& channel,
    Counter& counter, bool is_few) {
    const Shuffle& shuffle = args.shuffle;
    if (is_few) {
        counter = begin_counting(args, table);
        __syncthreads();
    }
    const u32* places = !is_few && NearPlaces::are_near(shuffle) ? table.places : shuffle.places;
    index_tokens(args, table, counter, places);
    count_alone(args, table, counter, places);
    __syncthreads();
    add_warps(
        shuffle, table, counter.mine.warps,
        counter.alone ? nullptr : shuffle.histograms + blockIdx.x * shuffle.buckets);
    if (!counter.alone) {
        const Signals signals{shuffle.team, channel.epoch};
        signals.signal_counted();
        if (!signals.await_counted()) return false;
        add_blocks(shuffle, table);
    }
    if (!exchange_counts(few, table, channel)) return false;
    place_buckets(shuffle, table, [&](int b) { return table.sum[b]; });
    finish_routes(args, table, counter);
    return true;
}

// Sends all ranks their way of a token's choice, and a note to the rank of its row.
__device__ __forceinline__ void send_way(
    const Shuffle& shuffle, i64 token, int c, u64 route, float weight) {
    const int me = shuffle.team.rank, target = route == kNoRow ? -1 : route_rank(route);
#pragma unroll 4
    for (int rank = 0; rank < shuffle.team.size; ++rank)
        shuffle.ways_of(rank, me, token)[c] = rank == target ? route_row(route) : kNoWay;
    if (target >= 0)
        shuffle.notes_of(target, me, token)[c] = make_note(place_local(route_place(route)), weight);
}

// Lists where the data of a token goes, once to each rank; with `sends_ways` sends the ranks their
// ways of it. All lanes of a warp. Returns the number of leaders, or 0 if the gate does not open.
__device__ int list_leaders(
    const DispatchArgs& args, i64 token, u64 packs, bool sends_ways, Gate& gate, Leader* leaders) {
    const Shuffle& shuffle = args.shuffle;
    const int k = int(shuffle.k), lane = int(threadIdx.x % 32);
    int count = 0;
    __syncwarp();  // the last token's leaders have been used
#pragma unroll 1
    for (int begin = 0; begin < k; begin += 32) {
        const int c = begin + lane;
        const u64 route = c < k ? args.routes[token * k + c] : kNoRow;
        const float weight =
            sends_ways && args.weights && c < k ? args.weights[token * k + c] : 1.0f;
        if (!gate.pass()) return 0;
        const int rank = route == kNoRow ? -1 : route_rank(route);
        const u32 same = __match_any_sync(kWholeWarp, rank);
        bool leads = rank >= 0 && (same & ((1u << lane) - 1)) == 0;
        // an earlier choice leads there
        for (int l = 0; l < count; ++l) leads = leads && leaders[l].rank != rank;
        const u32 leading = __ballot_sync(kWholeWarp, leads);
        if (leads) {
            Leader& leader = leaders[count + __popc(leading & ((1u << lane) - 1))];
            leader.row = reinterpret_cast<Pack*>(shuffle.rows[rank]) + route_row(route) * packs;
            leader.scales = reinterpret_cast<float*>(shuffle.scales[rank]) +
                route_row(route) * groups_of(shuffle);
            leader.rank = rank;
        }
        count += __popc(leading);
        if (sends_ways && c < k) send_way(shuffle, token, c, route, weight);
        __syncwarp();
    }
    return count;
}

// Stores a token's data in its leaders' rows, kUnroll packs of a thread at a time. list() lists the
// leaders and returns their number, after the first loads have been issued.
template <u32 kUnroll, class From, class To, class Transform, class List>
__device__ void store_token(
    const DispatchArgs& args, Share share, i64 token, const Leader* leaders, List list) {
    // packs that leave together (docs/design_notes.md, "For many tokens, too …": 2 H200)
    constexpr u32 kTogether = kUnroll < 2 ? kUnroll : 2;
    const u32 packs = u32(packs_of<To>(args.shuffle.hidden)), lane = threadIdx.x % 32;
    const char* from = args.tokens + token * args.shuffle.hidden * sizeof(From);
    const bool aligned = is_aligned(args.tokens);
    int count = -1;
    // the same in all lanes
    for (u32 first = share.member - lane; first < packs; first += kUnroll * share.members) {
        Source<From, To> sources[kUnroll];
#pragma unroll
        for (u32 u = 0; u < kUnroll; ++u)
            if (aligned && first + u * share.members + lane < packs)
                sources[u].load(from, first + u * share.members + lane, true);
#pragma unroll
        for (u32 u = 0; u < kUnroll; ++u)
            if (!aligned && first + u * share.members + lane < packs)
                sources[u].load(from, first + u * share.members + lane, false);
        if (count < 0) count = list();
#pragma unroll
        for (u32 begin = 0; begin < kUnroll; begin += kTogether) {
            const auto number = [&](u32 u) { return first + (begin + u) * share.members + lane; };
            Pack moved[kTogether];
            float scales[kTogether] = {};
#pragma unroll
            for (u32 u = 0; u < kTogether; ++u) {
                if (number(u) < packs)
                    sources[begin + u].template transform<Transform>(
                        args.transform, token, number(u));
                moved[u] = Cast<From, To>::round(sources[begin + u], scales[u]);
            }
#pragma unroll 1
            for (int leader = 0; leader < count; ++leader) {
                const Leader to = leaders[leader];
#pragma unroll
                for (u32 u = 0; u < kTogether; ++u) {
                    if (number(u) < packs) put_pack(to.row + number(u), moved[u]);
                    if (number(u) < packs && begins_group<To>(number(u)))
                        to.scales[number(u) / kGroupLanes] = scales[u];
                }
            }
        }
    }
}

// Sends this block's tokens.
template <class From, class To, class Transform>
__device__ void store_tokens(
    const DispatchArgs& args, const Jobs& jobs, const Signals& signals, Queue& queue, Gate& gate,
    Leader* leaders) {
    constexpr u32 kAtOnce = Source<From, To>::kPacks > 2 ? 2 : 4;
    const u64 packs = packs_of<To>(args.shuffle.hidden);
    const i64 first = Range(args.token_count).begin;
    for (u32 job = queue.take(kSend); job < jobs.count(); job = queue.take(kSend)) {
        const Share share = jobs.share(job);
        const i64 token = first + jobs.token(job);
        // Otherwise shorter code is faster.
        const bool sends_ways = !args.reuse && share.member < 32, many = packs > 2 * share.members;
        const auto list = [&] {
            return list_leaders(args, token, packs, sends_ways, gate, leaders);
        };
        if (many) store_token<kAtOnce, From, To, Transform>(args, share, token, leaders, list);
        else store_token<1, From, To, Transform>(args, share, token, leaders, list);
        if (!gate.pass()) return;
        signals.finish(queue, jobs.stage(job), jobs.stages());
    }
}

// Copies a leader's row to the token's other rows here, kUnroll packs of a thread at a time.
template <int kUnroll, class To>
__device__ void copy_on(const Shuffle& shuffle, Share share, const u32* rows, int count) {
    const u64 packs = packs_of<To>(shuffle.hidden), groups = groups_of(shuffle);
    Pack* data = reinterpret_cast<Pack*>(shuffle.rows[shuffle.team.rank]);
    float* scales = reinterpret_cast<float*>(shuffle.scales[shuffle.team.rank]);
    for (u64 first = share.member; first < packs; first += kUnroll * share.members) {
        Pack moved[kUnroll];
#pragma unroll
        for (int u = 0; u < kUnroll; ++u)
            if (first + u * share.members < packs)
                moved[u] = get_pack(data + rows[0] * packs + first + u * share.members);
#pragma unroll 1
        for (int r = 1; r < count; ++r) {
            Pack* to = data + rows[r] * packs + first;
#pragma unroll
            for (int u = 0; u < kUnroll; ++u)
                if (first + u * share.members < packs) to[u * share.members] = moved[u];
        }
    }
    for (u64 i = share.member; sizeof(To) == sizeof(Float8) && i < groups; i += share.members) {
        const float scale = scales[rows[0] * groups + i];
#pragma unroll 1
        for (int r = 1; r < count; ++r) scales[rows[r] * groups + i] = scale;
    }
}

// Lists the rows of a token of `source` here, and writes their experts and weights. Returns the
// number of rows.
__device__ int list_ways(const DispatchArgs& args, Share share, int source, i64 token, Rows& list) {
    const Shuffle& shuffle = args.shuffle;
    const int me = shuffle.team.rank;
    u32* handle_ways = args.ways + (source * shuffle.max_tokens + token) * shuffle.k;
    const u32* sent_ways = shuffle.ways_of(me, source, token);
    const u64* notes = shuffle.notes_of(me, source, token);
    u64 note = 0;
    const auto way = [&](int c) {
        if (args.reuse) return handle_ways[c];
        const u32 row = ld_relaxed_sys(sent_ways + c);
        note = ld_relaxed_sys(notes + c);  // in flight together with the row's load
        if (share.member < 32) handle_ways[c] = row;
        return row;
    };
    return list.list(int(shuffle.k), way, [&](int, int, u32 row) {
        if (args.reuse || share.member >= 32) return;
        args.row_experts[row] = int(note_local(note));
        args.row_weights[row] = note_weight(note);
    });
}

// Handles the tokens that come for this block: writes ways, experts and weights of their rows, and
// copies their data to all rows. With a handle the rows are listed while the data is in flight.
template <class To>
__device__ void deliver_tokens(
    const DispatchArgs& args, const Jobs& jobs, const Signals& signals, Queue& queue,
    const i64* tokens, Rows& list) {
    u32 stored = 0;  // stages
    for (u32 job = queue.take(kReceive); job < jobs.count(); job = queue.take(kReceive)) {
        const u32 stage = jobs.stage(job);
        const auto needed = [&](int source) {
            return i64(stage * jobs.stage_tokens < Range(tokens[source]).length() ? stage + 1 : 0);
        };
        const auto have_come = [&] { return stage < stored || signals.await_stored(needed); };
        const int source = int(jobs.source(job));
        const Range range(tokens[source]);
        const bool exists = jobs.token(job) < range.length();
        if (!args.reuse && !have_come()) return;
        const Share share = jobs.share(job);
        const int count =
            exists ? list_ways(args, share, source, range.begin + jobs.token(job), list) : 0;
        if (args.reuse && !have_come()) return;
        stored = stage + 1;
        if (count < 2) continue;
        if (packs_of<To>(args.shuffle.hidden) > 2 * share.members)
            copy_on<8, To>(args.shuffle, share, list.row, count);
        else copy_on<2, To>(args.shuffle, share, list.row, count);
    }
}

template <class From, class To, class Transform>
__device__ void move_many(
    const DispatchArgs& args, u32 epoch, const Table& table, Queue& queue, Gate& gate,
    DispatchList* lists) {
    const u32 size = u32(args.shuffle.team.size), warp = threadIdx.x / 32;
    const u32 longest = longest_range(table.tokens, int(size));
    const Jobs sent(1, Range(args.token_count).length(), longest), received(size, longest, longest);
    const Signals signals{args.shuffle.team, epoch};
    queue.begin(sent);
    if ((args.phases & kSend) && !receives_first(args.phases, kDispatchSending, received.stages()))
        store_tokens<From, To, Transform>(args, sent, signals, queue, gate, lists[warp].leaders);
    if ((args.phases & kReceive) && !args.reuse)  // while tokens are in flight
        // From this launch, or from the first one.
        write_end(args, args.phases & kSend ? total_of(args.shuffle, table) : args.total[0]);
    if (args.phases & kReceive)
        deliver_tokens<To>(args, received, signals, queue, table.tokens, lists[warp].rows);
}
