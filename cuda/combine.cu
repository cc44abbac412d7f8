// Combine: the results of a token's rows come back to its rank, added up.
//
// The sum has a fixed order, whatever the run or the layout of the rows: a rank adds weight * result over the
// token's rows that it has, in the order of the choices, in single precision, rounds to the type of the results and
// sends it; the token's rank adds what comes, in rank order, in single precision, and rounds once more. So a token's
// results travel once from each rank, as its data did.
#include "cast.cuh"
#include "shuffle.cuh"

struct CombineArgs {
    Shuffle shuffle;
    const char* results;  // [capacity] rows
    const Pack* links;    // of the dispatch, as the following
    const i64* total;
    const u64* routes;
    char* out;  // [token_count] rows
    i64 token_count;
    i64 weighted;  // 0: a plain sum
    i64 phases;
};

// Pack `i` of the sum over a token's rows here.
template <class T>
__device__ Pack folded(const CombineArgs& args, u64 row, Link link, u64 i) {
    const u64 nbytes = u64(args.shuffle.hidden) * sizeof(T);
    float sums[Elements<T>::kCount] = {};
    for (;;) {
        const float weight = args.weighted ? link.weight : 1.0f;
        const Elements<T> part = elements_of<T>(load_pack(args.results + row * nbytes, i, nbytes));
#pragma unroll
        for (int e = 0; e < Elements<T>::kCount; ++e) sums[e] += weight * float(part.values[e]);
        if (link.next < 0) break;
        row = u64(link.next);
        link = Link::unpack(args.links[row]);
    }
    Elements<T> rounded;
#pragma unroll
    for (int e = 0; e < Elements<T>::kCount; ++e) rounded.values[e] = T(sums[e]);
    return pack_of(rounded);
}

// Sends what this block's rows add up to where their tokens came from.
template <class T>
__device__ bool send(const CombineArgs& args, Channel& channel) {
    const Shuffle& shuffle = args.shuffle;
    if (!channel.await_entered(0)) return false;  // who is still adding what came last time has not
    const u64 packs = u64(shuffle.hidden) / Elements<T>::kCount;
    const u32 jobs = cards(args.total[0]);
    const Crew crew(jobs);
    for (u32 job = crew.first_job; job < jobs; job += crew.next_job) {
        const u64 row = blockIdx.x + u64(job) * gridDim.x;
        const Link link = Link::unpack(args.links[row]);
        if (!link.leader) continue;
        const u64 slot = u64(link.token) * shuffle.results_of_token + link.ordinal;
        Pack* to = reinterpret_cast<Pack*>(shuffle.results[link.source]) + slot * packs;
#pragma unroll 2
        for (u64 i = crew.member; i < packs; i += crew.members) put_pack(to + i, folded<T>(args, row, link, i));
    }
    __syncthreads();
    return true;
}

// Adds what the ranks sent for pack `i` of a token, and stores it as Out.
template <class T, class Out>
__device__ void add_up(const Pack* parts, int ranks, u64 packs, u64 i, char* out) {
    constexpr int kOut = sizeof(Out) / sizeof(T), kEach = Elements<Out>::kCount;
    float sums[Elements<T>::kCount] = {};
    for (int rank = 0; rank < ranks; ++rank) {
        const Elements<T> part = elements_of<T>(get_pack(parts + rank * packs + i));
#pragma unroll
        for (int e = 0; e < Elements<T>::kCount; ++e) sums[e] += float(part.values[e]);
    }
#pragma unroll
    for (int p = 0; p < kOut; ++p) {
        Elements<Out> rounded;
#pragma unroll
        for (int e = 0; e < kEach; ++e) rounded.values[e] = Out(sums[p * kEach + e]);
        store_pack(out, i * kOut + p, packs * kOut * kPackNbytes, pack_of(rounded));
    }
}

template <class T, class Out>
__device__ void receive(const CombineArgs& args) {
    const Shuffle& shuffle = args.shuffle;
    const u64 packs = u64(shuffle.hidden) / Elements<T>::kCount;
    const u32 jobs = cards(args.token_count);
    const Crew crew(jobs);
    for (u32 job = crew.first_job; job < jobs; job += crew.next_job) {
        const u64 token = blockIdx.x + u64(job) * gridDim.x;
        const int ranks = __popc(ranks_of(args.routes + token * shuffle.k, shuffle.k));
        const Pack* parts = reinterpret_cast<const Pack*>(shuffle.results[shuffle.team.rank]);
        char* out = args.out + token * shuffle.hidden * sizeof(Out);
        for (u64 i = crew.member; i < packs; i += crew.members)
            add_up<T, Out>(parts + token * shuffle.results_of_token * packs, ranks, packs, i, out);
    }
}

template <class T, class Out>
__global__ void __launch_bounds__(kMaxThreads, 1) combine(const __grid_constant__ CombineArgs args) {
    run_phases(
        args.shuffle.team, args.phases, [&](Channel& channel) { return send<T>(args, channel); },
        [&] { receive<T, Out>(args); });
}
