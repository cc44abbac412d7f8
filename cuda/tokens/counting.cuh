// Counting for a dispatch of many tokens: blocks number their tokens' choices in each bucket, ranks
// exchange the sums.
//
//   1. A warp numbers its part of the block's choices, 32 at a time (index_tokens); the barrier of
//      add_warps follows.
//   2. add_warps turns the warps' counters into sums over the warps before. With few choices every
//      block counts all choices of the rank instead of waiting for the other blocks (count_alone).
//   3. Otherwise blocks publish histograms, signal that they have counted (Signals, released by a
//      fence), wait for all others, and add up (add_blocks).
//   4. Ranks exchange counts as packets, a share from each block (exchange_counts).
//   5. finish_routes turns numbers into rows.
#pragma once
#include "tokens/buckets.cuh"
#include "tokens/stages.cuh"

constexpr u32 kCountedEach = 3;  // choices that a thread loads early, at most; not measured by
                                 // itself

// A warp's part of the choices of a block. Parts are consecutive, so that a part's numbers, plus
// the counts of all parts before it, are in the order of the choices.
struct WarpChoices {
    u32 begin = 0, end = 0;
    u32 warps = 0;  // warps of the block that have a part

    WarpChoices() = default;
    __device__ WarpChoices(const Shuffle& shuffle, const Range& range) {
        // as shared memory allows
        const u32 most = u32(smaller(blockDim.x / 32, u32(kMostCounters) / u32(shuffle.buckets)));
        const u32 first = u32(range.begin * shuffle.k),
                  choices = u32(range.end * shuffle.k) - first;
        const u32 each = (choices + most * 32 - 1) / (most * 32) * 32, warp = threadIdx.x / 32;
        warps = choices > 0 ? (choices + each - 1) / each : 0;
        begin = first + u32(smaller(u64(warp) * each, choices));
        end = first + u32(smaller(u64(warp + 1) * each, choices));
    }
};

// What a block counts of many tokens. The first experts of its threads are loaded while the block
// reads its epoch.
struct Counter {
    u32 choices = 0;   // this rank's choices
    bool alone = true; // so few that each block counts all of them (design_notes.md, "A token
                       // shuffle counts …")
    Range range;       // this block's tokens
    WarpChoices mine;  // the choices that this warp numbers
    i64 first = -1;    // the expert of this lane's first one
    i64 others[kCountedEach];  // and of those that this thread counts alone

    Counter() = default;
    __device__ explicit Counter(const DispatchArgs& args)
        : choices(u32(args.token_count * args.shuffle.k)),
          alone(args.token_count * args.shuffle.k <= args.shuffle.alone_choices),
          range(args.token_count),
          mine(args.shuffle, range) {}

    // A warp's counters, by bucket.
    __device__ int* counters(const Shuffle& shuffle, Table& table) const {
        return table.many.counters + threadIdx.x / 32 * u32(shuffle.buckets);
    }

    __device__ void load(const DispatchArgs& args) {
        const u32 i = mine.begin + threadIdx.x % 32;
        if (i < mine.end) first = expert_of_choice(args, i);
#pragma unroll
        for (u32 u = 0; u < kCountedEach; ++u)
            if (counts(u)) others[u] = expert_of_choice(args, number(u));
    }

    // Whether the thread counts a u-th choice in count_alone. Warps that number choices leave it to
    // the others, if there are any.
    __device__ bool counts(u32 u) const {
        return alone && threadIdx.x >= skipped() && number(u) < choices;
    }
    __device__ u32 number(u32 u) const {
        return threadIdx.x - skipped() + u * (blockDim.x - skipped());
    }

  private:
    __device__ u32 skipped() const { return mine.warps * 32 < blockDim.x ? mine.warps * 32 : 0; }
};

// Sets all counters to 0; a barrier follows.
__device__ void clear_counting(const Shuffle& shuffle, Table& table, const Counter& counter) {
    for (int b = int(threadIdx.x); b < shuffle.buckets; b += int(blockDim.x))
        table.many.own[b] = table.many.base[b] = table.sum[b] = 0;
    for (u32 i = threadIdx.x; i < counter.mine.warps * u32(shuffle.buckets); i += blockDim.x)
        table.many.counters[i] = 0;
}

// Loads what is to be counted first, and clears the counters; a barrier follows.
__device__ Counter begin_counting(const DispatchArgs& args, Table& table) {
    Counter counter(args);
    counter.load(args);
    clear_counting(args.shuffle, table, counter);
    return counter;
}

// Numbers the choices of this block's tokens within their buckets, each warp its part. `routes` has
// the numbers until finish_routes. `places`: the shuffle's.
__device__ void index_tokens(
    const DispatchArgs& args, Table& table, const Counter& counter, const u32* places) {
    const u32 lane = threadIdx.x % 32, end = counter.mine.end;
    int* counters = counter.counters(args.shuffle, table);
    for (u32 begin = counter.mine.begin; begin < end; begin += 32) {
        const u32 i = begin + lane;
        const i64 expert = begin == counter.mine.begin ? counter.first
            : i < end ? expert_of_choice(args, i) : -1;
        const int place = i < end ? place_of_choice(args, i, expert, places) : kNoPlace;
        const int bucket = bucket_of_place(args.shuffle, table, place);
        const u32 same = __match_any_sync(kWholeWarp, bucket);
        const int before = __popc(same & ((1u << lane) - 1));
        const int number = bucket < 0 ? 0 : counters[bucket] + before;
        __syncwarp();  // all lanes have read
        if (bucket >= 0 && before == 0) counters[bucket] = number + __popc(same);
        __syncwarp();
        if (i < end)
            args.routes[i] = place == kNoPlace ? kNoRow : make_route(u32(number), u32(place));
    }
}

// Counts all choices of this rank, if the block counts alone.
__device__ void count_alone(
    const DispatchArgs& args, Table& table, const Counter& counter, const u32* places) {
    const u32 begin = u32(counter.range.begin * args.shuffle.k);
    const auto count = [&](u32 i, i64 expert) {
        const int bucket =
            bucket_of_place(args.shuffle, table, place_of_choice(args, i, expert, places));
        if (bucket < 0) return;
        atomicAdd(&table.many.own[bucket], 1);
        if (i < begin) atomicAdd(&table.many.base[bucket], 1);
    };
#pragma unroll
    for (u32 u = 0; u < kCountedEach; ++u)
        if (counter.counts(u)) count(counter.number(u), counter.others[u]);
#pragma unroll 2
    for (u32 u = kCountedEach; counter.counts(u); ++u)
        count(counter.number(u), expert_of_choice(args, counter.number(u)));
}

// After all warps have counted: counters become sums over the warps before, the block's sums go to
// `histogram` unless null.
__device__ void add_warps(const Shuffle& shuffle, Table& table, u32 warps, int* histogram) {
    for (int b = int(threadIdx.x); b < shuffle.buckets; b += int(blockDim.x)) {
        int sum = 0;
#pragma unroll 4
        for (u32 warp = 0; warp < warps; ++warp) {
            int& counter = table.many.counters[warp * u32(shuffle.buckets) + u32(b)];
            const int count = counter;
            counter = sum;
            sum += count;
        }
        if (histogram) histogram[b] = sum;
    }
    __syncthreads();
}

// After all blocks have counted: the rank's sums, and the sums over the blocks before this one.
__device__ void add_blocks(const Shuffle& shuffle, Table& table) {
    for (int b = int(threadIdx.x); b < shuffle.buckets; b += int(blockDim.x)) {
        int before = 0, sum = 0;
#pragma unroll 16  // so many loads are in flight together
        for (u32 block = 0; block < gridDim.x; ++block) {
            const int count = shuffle.histograms[block * shuffle.buckets + b];
            before += block < blockIdx.x ? count : 0;
            sum += count;
        }
        table.many.own[b] = sum;
        table.sum[b] = 0;
        table.many.base[b] = before;
    }
    __syncthreads();
}

// Four counts of this rank, as a pack.
__device__ Pack counts_of(const Table& table, i64 buckets, int i) {
    u32 words[4];
    for (int w = 0; w < 4; ++w) words[w] = 4 * i + w < buckets ? u32(table.many.own[4 * i + w]) : 0;
    return Pack{u64(words[1]) << 32 | words[0], u64(words[3]) << 32 | words[2]};
}

__device__ __forceinline__ int count_in(Pack pack, int w) {
    return int(u32((w < 2 ? pack.x : pack.y) >> w % 2 * 32));
}

// Adds four counts of a rank to the table.
__device__ void add_counts(const Shuffle& shuffle, Table& table, int source, int i, Pack pack) {
    for (int w = 0; w < 4 && 4 * i + w < shuffle.buckets; ++w) {
        const int bucket = 4 * i + w, count = count_in(pack, w);
        atomicAdd(&table.sum[bucket], count);  // integers, so any order gives the same sum
        if (source < shuffle.team.rank) atomicAdd(&table.many.base[bucket], count);
        if (writes_counts()) shuffle.matrix[source * shuffle.buckets + bucket] = count;
    }
}

// Every rank sends every peer its counts, each block a share, and all blocks read all shares
// (few_tokens.cuh). The counts of all ranks are added to sum, base, and the matrix. Also receives
// the ranks' numbers of tokens, and waits until they have entered the operation. False: leave.
__device__ bool exchange_counts(const FewTokens& few, Table& table, const Channel& channel) {
    const Shuffle& shuffle = few.shuffle;
    const int all = int(shuffle.buckets + 3) / 4, peers = shuffle.team.size - 1,
              blocks = int(gridDim.x);
    // packs first, first + blocks …
    const int first = int(blockIdx.x), share = (all - first + blocks - 1) / blocks;
    for (int j = int(threadIdx.x); j < share * peers; j += int(blockDim.x)) {
        const int n = j / peers;
        few.send(
            channel.peer(j - n * peers), u32(n) * 2,
            counts_of(table, shuffle.buckets, first + n * blocks));
    }
    const int entering = int(blockDim.x - 1 - threadIdx.x);  // both were sent long before
    bool ok = few.receive_counts(table.tokens)
        && (!channel.is_peer(entering) || channel.wait_for_entered(entering, channel.epoch));
    for (int j = int(threadIdx.x); ok && j < all * shuffle.team.size; j += int(blockDim.x)) {
        const int source = j / all, i = j % all;
        Pack counts = counts_of(table, shuffle.buckets, i);
        if (source != shuffle.team.rank)
            ok = few.receive(
                source, few.packet_of_block(source, u32(i % blocks), u32(i / blocks) * 2), counts);
        if (ok) add_counts(shuffle, table, source, i, counts);
    }
    return Channel::everyone(ok);
}

// From a number in a warp's bucket to the row on a rank.
__device__ void finish_routes(const DispatchArgs& args, Table& table, const Counter& counter) {
    const int* counters = counter.counters(args.shuffle, table);
    for (u32 i = counter.mine.begin + threadIdx.x % 32; i < counter.mine.end; i += 32) {
        const u64 route = args.routes[i];
        if (route == kNoRow) continue;
        const int bucket = bucket_of(args.shuffle, table, route_place(route));
        const int row = table.count[bucket] + table.many.base[bucket] + counters[bucket] +
            int(route_row(route));
        args.routes[i] =
            row < table.limit[bucket] ? make_route(u32(row), route_place(route)) : kNoRow;
    }
    __syncthreads();
}
