// The spans of an exchange that go as chunks: a group of warps for each peer and way, in rounds (chunk.cuh).
//
// With one peer a long span is divided, chunk by chunk, among two lanes, which are the two rings: lane 0 has chunks 0, 2,
// 4 …, lane 1 the others. Each lane has a group of warps, so that one stores while the other's signal travels. With more
// peers the stores for other peers fill that time, and both rings are joined for longer chunks.
// Measured: lanes against none, 128 MB on 2 H200 (docs/design_notes.md, "Between two ranks a long message has two
// lanes").
#pragma once
#include "protocol/chunk.cuh"
#include "exchange/spans.cuh"

constexpr u32 kLanedChunks = 2;  // spans of more chunks have lanes; not measured by itself

// The number of lanes of a span of so many bytes; both ends compute the same.
__device__ __forceinline__ u32 lanes_of(const Team& team, u64 nbytes) {
    return team.size == 2 && nbytes > kLanedChunks * team.chunk_nbytes ? kRings : 1;
}

template <class Load>
struct ChunkExchange {
    Channel& channel;
    const Spans& spans;
    const Load& load;
    const u32 peers;
    const u64 longest;  // nbytes that are stored or taken; the same on both of two ranks
    const u32 lanes;
    Chunks chunks;

    __device__ ChunkExchange(Channel& channel, const Spans& spans, const Load& load)
        : channel(channel), spans(spans), load(load), peers(u32(channel.team.size - 1)), longest(find_longest()),
          lanes(lanes_of(channel.team, longest)), chunks(channel, int(lanes)) {}

    // All threads. False: leave. In place, the same group stores for a peer and takes from it, so that no chunk
    // overwrites data that is still to be sent. If `copies`, a group copies this rank's own span.
    template <class Copy>
    __device__ bool run(bool in_place, bool copies, Copy copy_own) {
        const u32 copy_job = 2 * lanes * peers, jobs = find_jobs(in_place) | u32(copies) << copy_job;
        const Crew crew(u32(__popc(jobs)));
        const u32 mine = share_of_jobs(crew, jobs);
        const u64 rounds = longest == 0 ? copies : (longest - 1) / (u64(lanes) * chunks.nbytes) + 2;
        bool ok = true;
        for (u64 round = 0; ok && round < rounds; ++round)
            for (u32 left = mine; ok && left != 0; left &= left - 1) {
                const u32 job = u32(__ffs(int(left)) - 1);
                if (job == copy_job) {
                    if (round == 0) copy_own(crew);
                    continue;
                }
                const int peer = channel.peer(int(job % peers)), lane = int(job / peers % lanes);
                const bool stores = job < lanes * peers;
                if (stores) ok = store(crew, peer, lane, round);
                if (ok && round > 0 && (in_place || !stores)) ok = take(crew, peer, lane, round - 1);
            }
        return channel.everyone(ok);
    }

  private:
    __device__ u64 find_longest() const {
        u64 found = 0;
        for (u32 j = 0; j < peers; ++j) {
            const int peer = channel.peer(int(j));
            if (found < spans.stored[peer]) found = spans.stored[peer];
            if (found < spans.taken[peer]) found = spans.taken[peer];
        }
        return found;
    }

    // A bit for each job that has work: lane l of the j-th peer, to store; from bit lanes * peers on, to take.
    __device__ u32 find_jobs(bool in_place) const {
        u32 jobs = 0;
        for (u32 job = 0; job < lanes * peers; ++job) {
            const int peer = channel.peer(int(job % peers));
            const bool takes = spans.taken[peer] > 0;
            if (spans.stored[peer] > 0 || (in_place && takes)) jobs |= 1u << job;
            if (takes && !in_place) jobs |= 1u << (lanes * peers + job);
        }
        return jobs;
    }

    // The jobs of this thread's group.
    __device__ static u32 share_of_jobs(const Crew& crew, u32 jobs) {
        u32 mine = 0, number = 0;
        for (u32 left = jobs; left != 0; left &= left - 1)
            if (number++ % crew.next_job == crew.first_job) mine |= left & (0u - left);
        return mine;
    }

    // Where a lane's chunk k begins in a span.
    __device__ u64 begin_of(int lane, u64 k) const { return (k * lanes + lane) * chunks.nbytes; }

    __device__ bool store(const Crew& crew, int peer, int lane, u64 k) {
        const u64 begin = begin_of(lane, k), end = spans.stored[peer];
        if (begin >= end) return true;
        const char* from = spans.out[peer].address + begin;
        const u64 nbytes = smaller(chunks.nbytes, end - begin);
        return chunks.store(crew, lane, peer, k, [&](Pack* to) {
            load.template copy<true>(crew.member, crew.members, from, to, nbytes);
        });
    }

    __device__ bool take(const Crew& crew, int peer, int lane, u64 k) {
        if (begin_of(lane, k) >= spans.taken[peer]) return true;
        const Span& span = spans.in[peer];
        const u64 begin = smaller(begin_of(lane, k), span.kept), nbytes = smaller(chunks.nbytes, span.kept - begin);
        return chunks.take(crew, lane, peer, k, [&](const Pack* from) {
            copy_here(crew.member, crew.members, from, span.address + begin, nbytes);
        });
    }
};
