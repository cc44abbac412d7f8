// How a dispatch of many tokens counts: blocks number the choices of their tokens in each bucket, ranks exchange the sums.
#pragma once
#include "buckets.cuh"

// Numbers the choices of this block's tokens within their buckets: what `routes` holds until finish_routes.
__device__ void index_tokens(const DispatchArgs& args, Table& table, const Range& range) {
    const i64 k = args.shuffle.k;
    for (int b = int(threadIdx.x); b < args.shuffle.buckets; b += int(blockDim.x)) table.count[b] = 0;
    for (i64 begin = range.begin * k; begin < range.end * k; begin += kSegment) {
        const int choices = int(smaller(u64(range.end * k - begin), kSegment));
        for (int i = int(threadIdx.x); i < choices; i += int(blockDim.x)) {
            const int place = place_of_choice(args, u32(begin + i), expert_of_choice(args, u32(begin + i)));
            table.many.segment[i] = bucket_of_place(args.shuffle, place);
            args.routes[begin + i] = place == kNoPlace ? kNoRow : make_route(0, u32(place));
        }
        __syncthreads();
        for (int i = int(threadIdx.x); i < choices; i += int(blockDim.x)) {
            const int bucket = table.many.segment[i];
            int before = 0, others = 0;
            for (int j = 0; j < choices; ++j) {
                const bool same = table.many.segment[j] == bucket;
                before += same && j < i;
                others += same && j > i;
            }
            if (bucket >= 0) args.routes[begin + i] += u32(table.count[bucket] + before);
            table.many.after[i] = bucket >= 0 && others == 0 ? table.count[bucket] + before + 1 : 0;
        }
        __syncthreads();
        for (int i = int(threadIdx.x); i < choices; i += int(blockDim.x))
            if (table.many.after[i] != 0) table.count[table.many.segment[i]] = table.many.after[i];
        __syncthreads();
    }
    __syncthreads();
    int* histogram = args.shuffle.histograms + blockIdx.x * args.shuffle.buckets;
    for (int b = int(threadIdx.x); b < args.shuffle.buckets; b += int(blockDim.x)) histogram[b] = table.count[b];
    __syncthreads();
}

// Of so few choices that each block counts all of the rank, instead of waiting for the other blocks.
__device__ void count_alone(const DispatchArgs& args, Table& table, const Range& range) {
    const Shuffle& shuffle = args.shuffle;
    for (int b = int(threadIdx.x); b < shuffle.buckets; b += int(blockDim.x))
        table.many.own[b] = table.many.base[b] = table.sum[b] = 0;
    __syncthreads();
    for (u32 i = threadIdx.x; i < u32(args.token_count * shuffle.k); i += blockDim.x) {
        const int bucket = bucket_of_place(shuffle, place_of_choice(args, i, expert_of_choice(args, i)));
        if (bucket < 0) continue;
        atomicAdd(&table.many.own[bucket], 1);
        if (i < u32(range.begin * shuffle.k)) atomicAdd(&table.many.base[bucket], 1);
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

// Every rank tells every peer its counts; all ranks' together come to sum, base, and the matrix.
__device__ bool exchange_counts(const Shuffle& shuffle, Table& table, Packets& packets) {
    const Team& team = shuffle.team;
    const int all = int(shuffle.buckets + 3) / 4, peers = team.size - 1;
    if (!packets.await_free()) return false;
    for (int j = int(threadIdx.x); j < all * peers; j += int(blockDim.x)) {
        Pack* outbox = packets.outbox(packets.channel.peer(j / all));
        packets.send(outbox, u32(j % all) * 2, counts_of(table, shuffle.buckets, j % all));
    }
    bool ok = true;
    for (int j = int(threadIdx.x); ok && j < all * team.size; j += int(blockDim.x)) {
        const int source = j / all, i = j % all;
        Pack counts = counts_of(table, shuffle.buckets, i);
        if (source != team.rank) ok = packets.receive(source, u32(i) * 2, counts);
        if (ok) add_counts(shuffle, table, source, i, counts);
    }
    return Channel::everyone(ok);
}

// From a number in a block's bucket to the row on a rank.
__device__ void finish_routes(const DispatchArgs& args, const Table& table, const Range& range) {
    for (i64 i = range.begin * args.shuffle.k + threadIdx.x; i < range.end * args.shuffle.k; i += blockDim.x) {
        const u64 route = args.routes[i];
        if (route == kNoRow) continue;
        const int bucket = bucket_of(args.shuffle, route_place(route));
        const int row = table.count[bucket] + table.many.base[bucket] + int(route_row(route));
        args.routes[i] = row < table.limit[bucket] ? make_route(u32(row), route_place(route)) : kNoRow;
    }
    __syncthreads();
}
