// Dispatch: every token goes to the ranks of its experts, and lands grouped, ready for the experts.
//
// One launch, whatever the routing; the host knows no count:
//   1. every block counts how many choices of its tokens go to each bucket, and numbers them (index_tokens);
//   2. the counts of all blocks make those of the rank, and are told to every peer as packets;
//   3. now every rank knows where each of its rows belongs, on whatever rank: it stores them there, each token
//      once to a rank, with a link that says what the row is;
//   4. when all ranks have stored, the receiver copies a token's data to its other rows, and hands out the links.
//
// Rows of a bucket are in the order (source, token, choice); numbers come from counting, not from atomics, so that
// the order is the same in every run. With a handle of an earlier dispatch (`reuse`) only the data moves.
#include "cast.cuh"
#include "packet.cuh"
#include "shuffle.cuh"

constexpr int kSegment = 256;  // choices that are numbered together

struct DispatchArgs {
    Shuffle shuffle;
    const char* tokens;    // [token_count] rows
    const void* experts;   // [token_count][k] int or i64; -1: none
    const float* weights;  // [token_count][k]; null: all 1
    u64* routes;           // [token_count][k]; these and the following are outputs, of the handle
    Pack* links;           // [capacity]
    i64* counts;           // of each of this rank's buckets,
    i64* offsets;          //   where it begins, and the end
    i64* total;            //   rows of this rank
    i64* dropped;          // [size]: rows of each source without room
    int* row_experts;      // [capacity]: the expert of a row, among the rank's; -1 past the rows,
    float* row_weights;    //   and its weight; 0 past the rows
    i64 token_count;
    i64 expert_nbytes;  // 4 or 8
    i64 reuse;          // routes, links and total are those of an earlier dispatch
    i64 phases;
};

struct Table {  // in shared memory, by bucket
    int count[kMaxBuckets];  // choices of this block; then where the bucket begins
    int own[kMaxBuckets];    // of this rank
    int sum[kMaxBuckets];    // of all ranks
    int base[kMaxBuckets];   // where this block's begin
    int limit[kMaxBuckets];  // and where the room ends
    int segment[kSegment], after[kSegment];
    int dropped[kMaxRanks];
};

__device__ __forceinline__ int bucket_of(const Shuffle& shuffle, u32 place) {
    const int rank = place_rank(place);
    return shuffle.by_source ? rank : int(shuffle.first[rank]) + int(place_local(place));
}

// The bucket of choice `i` of all, and the place of its expert; -1: none.
__device__ int bucket_of_choice(const DispatchArgs& args, i64 i, u32& place) {
    const Shuffle& shuffle = args.shuffle;
    const i64 expert = args.expert_nbytes == 8 ? static_cast<const i64*>(args.experts)[i]
                                               : i64(static_cast<const int*>(args.experts)[i]);
    if (expert == -1) return -1;
    const i64 token = i / shuffle.k;
    if (expert < 0 || expert >= shuffle.experts) {
        record_overflow(shuffle.team, kBadExpert, int(token), expert, shuffle.experts);
        return -1;
    }
    place = shuffle.places[expert * shuffle.replicas + (shuffle.team.rank + token) % shuffle.replicas];
    return bucket_of(shuffle, place);
}

// Numbers the choices of this block's tokens within their buckets: what `routes` holds until finish_routes.
__device__ void index_tokens(const DispatchArgs& args, Table& table, const Range& range) {
    const i64 k = args.shuffle.k;
    for (int b = int(threadIdx.x); b < args.shuffle.buckets; b += int(blockDim.x)) table.count[b] = 0;
    for (i64 begin = range.begin * k; begin < range.end * k; begin += kSegment) {
        const int choices = int(smaller(u64(range.end * k - begin), kSegment));
        u32 place = 0;
        for (int i = int(threadIdx.x); i < choices; i += int(blockDim.x)) {
            table.segment[i] = bucket_of_choice(args, begin + i, place);
            args.routes[begin + i] = table.segment[i] < 0 ? kNoRow : make_route(0, place);
        }
        __syncthreads();
        for (int i = int(threadIdx.x); i < choices; i += int(blockDim.x)) {
            const int bucket = table.segment[i];
            int before = 0, others = 0;
            for (int j = 0; j < choices; ++j) {
                const bool same = table.segment[j] == bucket;
                before += same && j < i;
                others += same && j > i;
            }
            if (bucket >= 0) args.routes[begin + i] += u32(table.count[bucket] + before);
            table.after[i] = bucket >= 0 && others == 0 ? table.count[bucket] + before + 1 : 0;
        }
        __syncthreads();
        for (int i = int(threadIdx.x); i < choices; i += int(blockDim.x))
            if (table.after[i] != 0) table.count[table.segment[i]] = table.after[i];
        __syncthreads();
    }
    __syncthreads();
    int* histogram = args.shuffle.histograms + blockIdx.x * args.shuffle.buckets;
    for (int b = int(threadIdx.x); b < args.shuffle.buckets; b += int(blockDim.x)) histogram[b] = table.count[b];
    __syncthreads();
}

// All blocks have counted: what the rank has, and what of it comes before this block's.
__device__ void add_blocks(const Shuffle& shuffle, Table& table) {
    for (int b = int(threadIdx.x); b < shuffle.buckets; b += int(blockDim.x)) {
        int before = 0, sum = 0;
        for (u32 block = 0; block < gridDim.x; ++block) {
            const int count = shuffle.histograms[block * shuffle.buckets + b];
            before += block < blockIdx.x ? count : 0;
            sum += count;
        }
        table.own[b] = sum;
        table.sum[b] = 0;
        table.base[b] = before;
    }
    __syncthreads();
}

// Four counts of this rank, as a pack.
__device__ Pack counts_of(const Table& table, i64 buckets, int i) {
    u32 words[4];
    for (int w = 0; w < 4; ++w) words[w] = 4 * i + w < buckets ? u32(table.own[4 * i + w]) : 0;
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
        if (source < shuffle.team.rank) atomicAdd(&table.base[bucket], count);
        if (blockIdx.x == 0) shuffle.matrix[source * shuffle.buckets + bucket] = count;
    }
}

// Every rank tells every peer its counts; all ranks' together come to sum, base, and block 0's matrix.
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

// Rows that a bucket of `rank` may have. Where rows are dropped, the rank's experts share its capacity alike.
__device__ __forceinline__ int room_of(const Shuffle& shuffle, int rank) {
    const bool shared = shuffle.drops && !shuffle.by_source;
    return int(shared ? shuffle.capacity / (shuffle.first[rank + 1] - shuffle.first[rank]) : shuffle.capacity);
}

// Where every bucket begins on its rank, where this block's rows of it begin, and where the room ends.
__device__ void place_buckets(const Shuffle& shuffle, Table& table) {
    for (int b = int(threadIdx.x); b < shuffle.buckets; b += int(blockDim.x)) {
        int rank = 0;
        while (shuffle.first[rank + 1] <= b) ++rank;
        const int room = room_of(shuffle, rank);
        int begin = 0;
        for (int other = int(shuffle.first[rank]); other < b; ++other) begin += min(table.sum[other], room);
        table.count[b] = begin;
        table.base[b] += begin;
        table.limit[b] = min(begin + min(table.sum[b], room), int(shuffle.capacity));
    }
    __syncthreads();
}

// From a number in a block's bucket to the row on a rank.
__device__ void finish_routes(const DispatchArgs& args, const Table& table, const Range& range) {
    for (i64 i = range.begin * args.shuffle.k + threadIdx.x; i < range.end * args.shuffle.k; i += blockDim.x) {
        const u64 route = args.routes[i];
        if (route == kNoRow) continue;
        const int bucket = bucket_of(args.shuffle, route_place(route));
        const int row = table.base[bucket] + int(route_row(route));
        args.routes[i] = row < table.limit[bucket] ? make_route(u32(row), route_place(route)) : kNoRow;
    }
    __syncthreads();
}

// What the receiver is told of the row that choice `c` of a token becomes.
__device__ Link link_of(const DispatchArgs& args, i64 token, int c) {
    const int k = int(args.shuffle.k);
    const u64* routes = args.routes + token * k;
    const int rank = route_rank(routes[c]);
    Link link{u32(token), place_local(route_place(routes[c])), u32(args.shuffle.team.rank), 0, u32(c), true, -1, 1.0f};
    link.ordinal = u32(__popc(ranks_of(routes, k) & ((1u << rank) - 1)));
    for (int other = 0; other < k; ++other) {
        if (other == c || routes[other] == kNoRow || route_rank(routes[other]) != rank) continue;
        if (other < c) link.leader = false;
        else if (link.next < 0) link.next = int(route_row(routes[other]));
    }
    if (args.weights) link.weight = args.weights[token * k + c];
    return link;
}

// Stores this block's tokens where they belong: the links of all rows, the data of leaders.
template <class From, class To>
__device__ void store_rows(const DispatchArgs& args, const Range& range) {
    const Shuffle& shuffle = args.shuffle;
    const u64 groups = (u64(shuffle.hidden) + kGroup - 1) / kGroup;
    const u32 jobs = u32((range.end - range.begin) * shuffle.k);
    const Crew crew(jobs);
    for (u32 job = crew.first_job; job < jobs; job += crew.next_job) {
        const i64 token = range.begin + job / shuffle.k;
        const u64 route = args.routes[token * shuffle.k + job % shuffle.k];
        if (route == kNoRow) continue;
        const Link link = link_of(args, token, int(job % shuffle.k));
        const int rank = route_rank(route);
        const u64 row = route_row(route);
        if (crew.member == 0 && !args.reuse)
            put_pack(reinterpret_cast<Pack*>(shuffle.links[rank]) + row, link.pack());
        if (!link.leader) continue;
        Cast<From, To>::move(crew, args.tokens + token * shuffle.hidden * sizeof(From), u64(shuffle.hidden),
                             shuffle.rows[rank] + row * shuffle.hidden * sizeof(To),
                             reinterpret_cast<float*>(shuffle.scales[rank]) + row * groups);
    }
    __syncthreads();
}

// Block 0: how many rows each bucket has, where it begins, and what had no room.
__device__ void write_counts(const DispatchArgs& args, Table& table) {
    const Shuffle& shuffle = args.shuffle;
    const Team& team = shuffle.team;
    const int first = int(shuffle.first[team.rank]), end = int(shuffle.first[team.rank + 1]);
    if (int(threadIdx.x) < team.size) table.dropped[threadIdx.x] = 0;
    __syncthreads();
    const i64 total = end > first ? table.limit[end - 1] : 0;
    for (int b = first + int(threadIdx.x); b < end; b += int(blockDim.x)) {
        int before = table.count[b];
        if (!shuffle.by_source) {
            args.offsets[b - first] = smaller(before, total);
            args.counts[b - first] = table.limit[b] > before ? table.limit[b] - before : 0;
        }
        for (int source = 0; source < team.size; ++source) {
            const int count = shuffle.matrix[source * shuffle.buckets + b];
            const int kept = max(0, min(count, table.limit[b] - before));
            if (kept < count) atomicAdd(&table.dropped[source], count - kept);
            if (shuffle.by_source) {
                args.offsets[source] = smaller(before, total);
                args.counts[source] = kept;
            }
            before += count;
        }
    }
    __syncthreads();
    if (int(threadIdx.x) < team.size) args.dropped[threadIdx.x] = table.dropped[threadIdx.x];
    if (threadIdx.x != 0) return;
    args.offsets[shuffle.by_source ? team.size : end - first] = total;
    args.total[0] = total;
    for (int source = 0; source < team.size && !shuffle.drops; ++source) {
        if (table.dropped[source] == 0) continue;
        i64 wanted = 0;
        for (int b = first; b < end; ++b) wanted += shuffle.matrix[source * shuffle.buckets + b];
        return record_overflow(team, kCut, source, wanted, wanted - table.dropped[source]);
    }
}

template <class From, class To>
__device__ bool send(const DispatchArgs& args, Channel& channel) {
    __shared__ Table table;
    const Shuffle& shuffle = args.shuffle;
    const Range range(args.token_count);
    if (args.reuse) {
        if (!channel.await_entered(0)) return false;  // who still reads what came last time has not
        store_rows<From, To>(args, range);
        return true;
    }
    index_tokens(args, table, range);
    const Signals signals{shuffle.team, channel.epoch};
    signals.say_counted();
    if (!signals.await_counted()) return false;
    add_blocks(shuffle, table);
    Packets packets(channel);
    if (!exchange_counts(shuffle, table, packets)) return false;
    place_buckets(shuffle, table);
    finish_routes(args, table, range);
    if (!channel.await_entered(0)) return false;  // a count that came says so too, but orders nothing
    store_rows<From, To>(args, range);
    if (blockIdx.x == 0) write_counts(args, table);
    __syncthreads();
    return true;
}

// Copies what a leader has to the token's other rows here.
template <class To>
__device__ void copy_on(const Shuffle& shuffle, const Crew& crew, const Pack* links, u64 leader, int next) {
    const u64 packs = u64(shuffle.hidden) * sizeof(To) / kPackNbytes, groups = (u64(shuffle.hidden) + kGroup - 1) / kGroup;
    Pack* rows = reinterpret_cast<Pack*>(shuffle.rows[shuffle.team.rank]);
    float* scales = reinterpret_cast<float*>(shuffle.scales[shuffle.team.rank]);
    for (; next >= 0; next = Link::unpack(get_pack(links + next)).next) {
        move_packs(
            crew.member, packs, crew.members,
            [&](u64 i) { return get_pack(rows + leader * packs + i); },
            [&](u64 i, Pack pack) { rows[next * packs + i] = pack; });
        if (sizeof(To) == sizeof(Float8))
            for (u64 i = crew.member; i < groups; i += crew.members) scales[next * groups + i] = scales[leader * groups + i];
    }
}

// All ranks have stored: hand out the links, complete the rows.
template <class To>
__device__ void deliver(const DispatchArgs& args) {
    const Shuffle& shuffle = args.shuffle;
    const Pack* links = args.reuse ? args.links : reinterpret_cast<const Pack*>(shuffle.links[shuffle.team.rank]);
    const u32 jobs = cards(args.total[0]);
    const Crew crew(jobs);
    for (u32 job = crew.first_job; job < jobs; job += crew.next_job) {
        const u64 row = blockIdx.x + u64(job) * gridDim.x;
        const Pack pack = get_pack(links + row);
        const Link link = Link::unpack(pack);
        if (crew.member == 0 && !args.reuse) {
            args.links[row] = pack;
            args.row_experts[row] = int(link.local);
            args.row_weights[row] = link.weight;
        }
        if (link.leader) copy_on<To>(shuffle, crew, links, row, link.next);
    }
    if (args.reuse) return;
    for (i64 row = args.total[0] + blockIdx.x * blockDim.x + threadIdx.x; row < shuffle.capacity;
         row += gridDim.x * blockDim.x) {
        args.row_experts[row] = -1;
        args.row_weights[row] = 0.0f;
    }
}

template <class From, class To>
__global__ void __launch_bounds__(kMaxThreads, 1) dispatch(const __grid_constant__ DispatchArgs args) {
    run_phases(
        args.shuffle.team, args.phases, [&](Channel& channel) { return send<From, To>(args, channel); },
        [&] { deliver<To>(args); });
}
