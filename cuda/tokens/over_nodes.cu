// Dispatch over nodes: every rank computes, for its node, where all ranks' choices go, and which tokens are sent
// between nodes.
//
//   1. announce_choices writes the words of this rank's choices, which all ranks then get.
//   2. number_choices counts the choices in each bucket of this node, and numbers the tokens that a
//      node gets.
//   3. place_choices computes the rows as a dispatch inside a node does (buckets.cuh): rows of a
//      bucket are in the order (source, token, choice). It writes the handle.
//   4. pack_tokens copies this rank's tokens together by nodes. Of a collect, join_values does the
//      opposite.
// All ranks of a node compute the same from the same words, so routes and ways agree without
// another exchange. A thread numbers the choices of a bucket one after the other: their order does
// not depend on the grid.
// Launch: any number of blocks of whole warps; they wait for nothing.
#include "tokens/over_nodes.cuh"

constexpr int kTile = 1024;  // choices whose buckets are in shared memory at a time; not measured

__device__ __forceinline__ u64 thread_of_grid() {
    return u64(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ __forceinline__ u64 threads_of_grid() { return u64(gridDim.x) * blockDim.x; }

// The place of an expert that a token chose, or that of none.
__device__ u32 place_of(const CrossingArgs& args, i64 token, i64 expert) {
    if (expert == -1) return choice_place_of(kNoWord);
    if (expert < 0 || expert >= args.experts) {
        record_overflow(args.team, kBadExpert, int(token), expert, args.experts);
        return choice_place_of(kNoWord);
    }
    return expert_replica(args.places, u32(args.replicas), u32(expert), u32(args.rank + token));
}

template <class = void>
__global__ void __launch_bounds__(kMaxThreads, 1)
    announce_choices(const __grid_constant__ CrossingArgs args) {
    u64* words = args.words + args.rank * args.words_of_rank();
    if (thread_of_grid() == 0) words[0] = u64(args.token_count);
    for (i64 i = i64(thread_of_grid()); i < args.token_count * args.k;
         i += i64(threads_of_grid())) {
        const i64 expert = args.expert_nbytes == 8 ? static_cast<const i64*>(args.chosen)[i]
                                                   : static_cast<const int*>(args.chosen)[i];
        words[1 + i] =
            make_choice(place_of(args, i / args.k, expert), args.weights ? args.weights[i] : 1.0f);
    }
}

// The bucket of a choice on this node; -1: it goes elsewhere, or nowhere.
__device__ __forceinline__ int bucket_of(const CrossingArgs& args, u64 word) {
    const u32 place = choice_place_of(word);
    const int local = place == choice_place_of(kNoWord) ? -1 : args.local_of[place_rank(place)];
    if (local < 0) return -1;
    return args.by_source ? local : args.first[local] + int(place_local(place));
}

// Threads b, b + blockDim.x … look at the choices of a source in their order: found(b, number,
// choice) is called for each in bucket b, with its number there; end(b, count) after the last one.
// All threads of a block.
template <class Found, class End>
__device__ void scan_choices(
    const CrossingArgs& args, i64 source, int* tile, Found found, End end) {
    const u64* choices = args.choices_of(source);
    const i64 all = args.tokens_of(source) * args.k;
    for (i64 first = 0; first < args.buckets; first += blockDim.x) {
        const int mine = int(first + threadIdx.x);
        int count = 0;
        for (i64 begin = 0; begin < all; begin += kTile) {
            const int length = int(smaller(kTile, all - begin));
            __syncthreads();  // the last tile has been used
            for (int i = int(threadIdx.x); i < length; i += int(blockDim.x))
                tile[i] = bucket_of(args, choices[begin + i]);
            __syncthreads();
            for (int i = 0; i < length && mine < args.buckets; ++i)
                if (tile[i] == mine) found(mine, count++, begin + i);
        }
        if (mine < args.buckets) end(mine, count);
    }
}

// A warp numbers the tokens of a source that have choices on a node: numbers[token], -1 for others.
// Returns how many.
__device__ i64 number_tokens(const CrossingArgs& args, i64 source, i64 node, int* numbers) {
    const u64* choices = args.choices_of(source);
    const i64 tokens = args.tokens_of(source);
    const int lane = int(threadIdx.x % 32);
    int count = 0;
    for (i64 begin = 0; begin < tokens; begin += 32) {
        const i64 token = begin + lane;
        bool goes = false;
        for (i64 c = 0; c < args.k && token < tokens && !goes; ++c) {
            const u32 place = choice_place_of(choices[token * args.k + c]);
            goes = place != choice_place_of(kNoWord) && args.node_of[place_rank(place)] == node;
        }
        const u32 going = __ballot_sync(kWholeWarp, goes);
        if (token < tokens) numbers[token] = goes ? count + __popc(going & ((1u << lane) - 1)) : -1;
        count += __popc(going);
    }
    return count;
}

// Clears the handle: no choice has a row yet, and no row a choice; place_choices finds them.
__device__ void clear_handle(const CrossingArgs& args) {
    const i64 choices = args.slots * args.max_tokens * args.k, first = i64(thread_of_grid()),
              step = i64(threads_of_grid());
    for (i64 i = first; i < choices; i += step) args.routes[i] = kNoRow;
    for (i64 i = first; i < args.local_size * choices; i += step) args.ways[i] = kNoWay;
    for (i64 row = first; row < args.capacity; row += step) {
        args.row_experts[row] = -1;
        args.row_weights[row] = 0.0f;
    }
}

template <class = void>
__global__ void __launch_bounds__(kMaxThreads, 1)
    number_choices(const __grid_constant__ CrossingArgs args) {
    __shared__ int tile[kTile];
    const int warp = int(threadIdx.x / 32), warps = int(blockDim.x / 32),
              lane = int(threadIdx.x % 32);
    clear_handle(args);
    for (i64 source = blockIdx.x; source < args.size; source += gridDim.x) {
        scan_choices(
            args, source, tile, [](int, int, i64) {},
            [&](int b, int count) { args.matrix[source * args.buckets + b] = count; });
        if (warp == 0) {
            const i64 count =
                number_tokens(args, source, args.node, args.numbers + source * args.max_tokens);
            const bool here = args.proxy_of[source] == args.local_rank;
            if (here && lane == 0) args.crossing[args.nodes + args.slot_of[source]] = count;
        }
        for (i64 node = warp; source == args.rank && node < args.nodes; node += warps) {
            const i64 count =
                number_tokens(args, source, node, args.where + node * args.max_tokens);
            if (lane == 0) args.crossing[node] = count;
        }
    }
}

struct Buckets {  // this node's buckets, in shared memory
    int total[kMaxBuckets];   // choices of all ranks,
    int before[kMaxBuckets];  //   and of those before the source
    int begin[kMaxBuckets];   // its first row,
    int limit[kMaxBuckets];   //   and where its room ends
};

// All threads compute where the buckets begin and end, and how many choices come before those of
// `source`.
__device__ void place_buckets(const CrossingArgs& args, i64 source, Buckets& buckets) {
    __syncthreads();  // the last source's have been used
    for (i64 b = threadIdx.x; b < args.buckets; b += blockDim.x) {
        int total = 0, before = 0;
        for (i64 other = 0; other < args.size; ++other) {
            if (other == source) before = total;
            total += args.matrix[other * args.buckets + b];
        }
        buckets.total[b] = total;
        buckets.before[b] = before;
    }
    __syncthreads();
    for (i64 local = threadIdx.x; local < args.local_size; local += blockDim.x) {
        const int first = args.first[local], end = args.first[local + 1], sharers = end - first;
        const i64 room =
            args.drops && !args.by_source && sharers > 0 ? args.capacity / sharers : args.capacity;
        i64 used = 0;
        for (int b = first; b < end; ++b) {
            buckets.begin[b] = int(used);
            used = i64(smaller(used + smaller(buckets.total[b], room), args.capacity));
            buckets.limit[b] = int(used);
        }
    }
    __syncthreads();
}

// Returns how many of `count` rows fit, if they begin `before` rows after a bucket's first row.
__device__ __forceinline__ i64 kept_of(const Buckets& buckets, int b, i64 before, i64 count) {
    const i64 left = buckets.limit[b] - buckets.begin[b] - before;
    return left < 0 ? 0 : i64(smaller(count, left));
}

// Counts a source's rows in this rank's buckets, and those that do not fit.
__device__ void count_rows(
    const CrossingArgs& args, const Buckets& buckets, i64 source, int first, int end, i64& rows,
    i64& dropped) {
    rows = dropped = 0;
    for (int b = first; b < end; ++b) {
        i64 before = 0;
        for (i64 other = 0; other < source; ++other)
            before += args.matrix[other * args.buckets + b];
        const i64 count = args.matrix[source * args.buckets + b];
        rows += count;
        dropped += count - kept_of(buckets, b, before, count);
        if (!args.by_source) continue;
        args.offsets[source] = i64(smaller(before, buckets.limit[b]));
        args.counts[source] = count - dropped;
    }
}

// Block 0 writes the outputs for the caller beside the rows.
__device__ void write_counts(const CrossingArgs& args, const Buckets& buckets) {
    const int first = args.first[args.local_rank], end = args.first[args.local_rank + 1];
    const i64 total = end > first ? buckets.limit[end - 1] : 0;
    for (int b = first + int(threadIdx.x); !args.by_source && b < end; b += int(blockDim.x)) {
        args.offsets[b - first] = buckets.begin[b];
        args.counts[b - first] = buckets.limit[b] - buckets.begin[b];
    }
    i64 rows, dropped;
    for (i64 source = threadIdx.x; source < args.size; source += blockDim.x) {
        count_rows(args, buckets, source, first, end, rows, dropped);
        args.dropped[source] = dropped;
    }
    __syncthreads();
    if (threadIdx.x != 0) return;
    args.offsets[args.by_source ? args.size : end - first] = total;
    args.total[0] = total;
    for (i64 source = 0; source < args.size && !args.drops; ++source) {
        if (args.dropped[source] == 0) continue;
        count_rows(args, buckets, source, first, end, rows, dropped);
        return record_overflow(args.team, kCut, int(source), rows, rows - dropped);
    }
}

template <class = void>
__global__ void __launch_bounds__(kMaxThreads, 1)
    place_choices(const __grid_constant__ CrossingArgs args) {
    __shared__ int tile[kTile];
    __shared__ Buckets buckets;
    for (i64 source = blockIdx.x; source < args.size; source += gridDim.x) {
        place_buckets(args, source, buckets);
        if (source == 0) write_counts(args, buckets);
        const bool is_proxy = args.proxy_of[source] == args.local_rank;
        const i64 slot = args.slot_of[source] * args.max_tokens;
        u32* ways = args.ways + args.proxy_of[source] * args.slots * args.max_tokens * args.k;
        const auto place = [&](int b, int number, i64 i) {
            const int row = buckets.begin[b] + buckets.before[b] + number;
            if (row >= buckets.limit[b]) return;
            const u64 word = args.choices_of(source)[i];
            const u32 local = place_local(choice_place_of(word));
            const int holder = args.local_of[place_rank(choice_place_of(word))];
            const i64 token = i / args.k,
                      at = (slot + args.numbers[source * args.max_tokens + token]) * args.k +
                i % args.k;
            if (is_proxy) args.routes[at] = make_route(u32(row), expert_place(holder, local));
            if (holder != args.local_rank) return;
            ways[at] = u32(row);
            args.row_experts[row] = int(local);
            args.row_weights[row] = choice_weight_of(word);
        };
        scan_choices(args, source, tile, place, [](int, int) {});
    }
}

// Copies tokens to the outbox of a node, a warp for each token.
template <class = void>
__global__ void __launch_bounds__(kMaxThreads, 1)
    pack_tokens(const __grid_constant__ CrossingArgs args) {
    const i64 warps = i64(threads_of_grid() / 32), all = args.nodes * args.token_count;
    const u64 packs = packs_in(u64(args.row_nbytes));
    for (i64 i = i64(thread_of_grid() / 32); i < all; i += warps) {
        const i64 node = i / args.token_count, token = i % args.token_count;
        const int number = args.where[node * args.max_tokens + token];
        if (number < 0) continue;
        const char* from = args.tokens + token * args.row_nbytes;
        char* to = args.on_way(node, number);
        for (u64 p = threadIdx.x % 32; p < packs; p += 32)
            store_pack(to, p, u64(args.row_nbytes), load_pack(from, p, u64(args.row_nbytes)));
    }
}

// Stores, for each choice of each token of this rank, the number that the nodes have sent back. At most one node has the
// choice's row; the others send 0.
template <class = void>
__global__ void __launch_bounds__(kMaxThreads, 1)
    join_values(const __grid_constant__ CrossingArgs args) {
    u32* out = reinterpret_cast<u32*>(args.out);
    for (i64 i = i64(thread_of_grid()); i < args.token_count * args.k;
         i += i64(threads_of_grid())) {
        const i64 token = i / args.k, c = i % args.k;
        u32 bits = 0;
        for (i64 node = 0; node < args.nodes; ++node) {
            const int number = args.where[node * args.max_tokens + token];
            if (number >= 0) bits |= reinterpret_cast<const u32*>(args.on_way(node, number))[c];
        }
        out[i] = bits;
    }
}
