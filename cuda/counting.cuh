// How a dispatch of many tokens counts: blocks number the choices of their tokens in each bucket, ranks exchange the sums.
#pragma once
#include "buckets.cuh"

// A warp's part of the choices of a block, and its counters by bucket. Parts follow each other, so that numbers of one,
// on top of what all before it have counted, are in the order of the choices.
struct WarpChoices {
    u32 begin, end;
    int* counters;

    __device__ WarpChoices(const Shuffle& shuffle, Table& table, const Range& range) {
        const u32 first = u32(range.begin * shuffle.k), choices = u32(range.end * shuffle.k) - first;
        const u32 each = (choices + warps(shuffle) * 32 - 1) / (warps(shuffle) * 32) * 32, warp = threadIdx.x / 32;
        begin = first + u32(smaller(u64(warp) * each, choices));
        end = warp < warps(shuffle) ? first + u32(smaller(u64(warp + 1) * each, choices)) : begin;
        counters = table.many.counters + warp * u32(shuffle.buckets);
    }

    // As many of the block as there is room for.
    static __device__ u32 warps(const Shuffle& shuffle) {
        return u32(smaller(blockDim.x / 32, u32(kMostCounters) / u32(shuffle.buckets)));
    }
};

// Nothing has been counted yet.
__device__ void clear_counting(const Shuffle& shuffle, Table& table) {
    for (int b = int(threadIdx.x); b < shuffle.buckets; b += int(blockDim.x))
        table.many.own[b] = table.many.base[b] = table.sum[b] = 0;
    for (u32 i = threadIdx.x; i < WarpChoices::warps(shuffle) * u32(shuffle.buckets); i += blockDim.x) table.many.counters[i] = 0;
    __syncthreads();
}

// Numbers the choices of this block's tokens within their buckets, each warp those of its segment: what `routes` holds until
// finish_routes.
__device__ void index_tokens(const DispatchArgs& args, const WarpChoices& mine) {
    const u32 lane = threadIdx.x % 32;
    for (u32 first = mine.begin; first < mine.end; first += 32) {
        const u32 i = first + lane;
        const int place = i < mine.end ? place_of_choice(args, i, expert_of_choice(args, i), args.shuffle.places) : kNoPlace;
        const int bucket = bucket_of_place(args.shuffle, place);
        const u32 same = __match_any_sync(0xffffffffu, bucket);
        const int before = __popc(same & ((1u << lane) - 1));
        const int number = bucket < 0 ? 0 : mine.counters[bucket] + before;
        __syncwarp();  // all have read
        if (bucket >= 0 && before == 0) mine.counters[bucket] = number + __popc(same);
        __syncwarp();
        if (i < mine.end) args.routes[i] = place == kNoPlace ? kNoRow : make_route(u32(number), u32(place));
    }
}

// Of so few choices that each block counts all of the rank, instead of waiting for the other blocks. Warps that have
// choices to number leave it to the others, if there are any.
__device__ void count_alone(const DispatchArgs& args, Table& table, const Range& range) {
    const Shuffle& shuffle = args.shuffle;
    const u32 warps = u32(range.end - range.begin) * u32(shuffle.k) / 32 + 1;
    const u32 first = warps * 32 < blockDim.x && warps < WarpChoices::warps(shuffle) ? warps * 32 : 0;
    if (threadIdx.x < first) return;
#pragma unroll 2
    for (u32 i = threadIdx.x - first; i < u32(args.token_count * shuffle.k); i += blockDim.x - first) {
        const int bucket = bucket_of_place(shuffle, place_of_choice(args, i, expert_of_choice(args, i), args.shuffle.places));
        if (bucket < 0) continue;
        atomicAdd(&table.many.own[bucket], 1);
        if (i < u32(range.begin * shuffle.k)) atomicAdd(&table.many.base[bucket], 1);
    }
}

// All warps have counted: counters become what the warps before have counted, the block's sums go to `histogram`.
__device__ void add_warps(const Shuffle& shuffle, Table& table, int* histogram) {
    for (int b = int(threadIdx.x); b < shuffle.buckets; b += int(blockDim.x)) {
        int sum = 0;
#pragma unroll 4
        for (u32 warp = 0; warp < WarpChoices::warps(shuffle); ++warp) {
            int& counter = table.many.counters[warp * u32(shuffle.buckets) + u32(b)];
            const int count = counter;
            counter = sum;
            sum += count;
        }
        if (histogram) histogram[b] = sum;
    }
    __syncthreads();
}

// All blocks have counted: what the rank has, and what of it comes before this block's.
__device__ void add_blocks(const Shuffle& shuffle, Table& table) {
    for (int b = int(threadIdx.x); b < shuffle.buckets; b += int(blockDim.x)) {
        int before = 0, sum = 0;
#pragma unroll 16  // loads that are on their way together
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
        atomicAdd(&table.sum[bucket], count);  // of integers: in whatever order
        if (source < shuffle.team.rank) atomicAdd(&table.many.base[bucket], count);
        if (is_scribe()) shuffle.matrix[source * shuffle.buckets + bucket] = count;
    }
}

// Every rank tells every peer its counts, each block a share, and all blocks read all shares (few_tokens.cuh); all ranks'
// together come to sum, base, and the matrix.
__device__ bool exchange_counts(const FewTokens& few, Table& table, const Channel& channel) {
    const Shuffle& shuffle = few.shuffle;
    const int all = int(shuffle.buckets + 3) / 4, peers = shuffle.team.size - 1, blocks = int(gridDim.x);
    const int first = int(blockIdx.x), share = (all - first + blocks - 1) / blocks;  // packs first, first + blocks …
    for (int j = int(threadIdx.x); j < share * peers; j += int(blockDim.x)) {
        const int n = j / peers;
        few.send(channel.peer(j - n * peers), u32(n) * 2, counts_of(table, shuffle.buckets, first + n * blocks));
    }
    bool ok = true;
    for (int j = int(threadIdx.x); ok && j < all * shuffle.team.size; j += int(blockDim.x)) {
        const int source = j / all, i = j % all;
        Pack counts = counts_of(table, shuffle.buckets, i);
        if (source != shuffle.team.rank) ok = few.receive(source, few.told(source, u32(i % blocks), u32(i / blocks) * 2), counts);
        if (ok) add_counts(shuffle, table, source, i, counts);
    }
    return Channel::everyone(ok);
}

// From a number in a warp's bucket to the row on a rank.
__device__ void finish_routes(const DispatchArgs& args, const Table& table, const WarpChoices& mine) {
    for (u32 i = mine.begin + threadIdx.x % 32; i < mine.end; i += 32) {
        const u64 route = args.routes[i];
        if (route == kNoRow) continue;
        const int bucket = bucket_of(args.shuffle, route_place(route));
        const int row = table.count[bucket] + table.many.base[bucket] + mine.counters[bucket] + int(route_row(route));
        args.routes[i] = row < table.limit[bucket] ? make_route(u32(row), route_place(route)) : kNoRow;
    }
    __syncthreads();
}
