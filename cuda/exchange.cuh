// Moving bytes between every pair of ranks, by packets or by chunks as each pair's length suggests.
//
// A movement operation (Bcast, Allgather, Alltoall, Alltoallv …) says, for its block, what goes to each
// rank and where what comes from each rank belongs; `exchange` does the rest. Sender and receiver know
// the length, so both know without asking which way a span takes:
//   * a span that fits a packet slot goes as packets: all leave, then all are awaited;
//   * a longer one goes as chunks: step k stores chunk k for every peer, then takes chunk k - 1 of every
//     peer. A rank at step k waits only for what its peers did in step k - 1 or before, so the rank that
//     is furthest behind never waits: no deadlock, whatever the lengths.
//
// In place is fine where a span's source and destination are the same bytes: a chunk or pack is sent before
// the one that replaces it is stored, by the same thread (packets) or a step later (chunks).
#pragma once
#include "chunk.cuh"
#include "packet.cuh"
#include "vector.cuh"

struct Span {
    char* address;
    u64 nbytes;  // that travel
    u64 kept;    // of them, what the receiver stores: the rest did not fit its buffer
};

struct Exchange {
    Channel& channel;
    Packets& packets;
    const Span* out;   // [size] in shared memory: to each rank
    const Span* in;    // [size] in shared memory: from each rank
    const u32 header;  // packets at the start of every slot that the caller has used

    // All threads, after a barrier that made `out` and `in` visible; false: leave. The packet slots are free.
    __device__ bool run() {
        copy_own();
        send_packets();
        return receive_packets() && move_chunks();
    }

  private:
    __device__ int peers() const { return channel.team.size - 1; }

    __device__ bool as_packets(const Span& span) const {
        return packs_in(span.nbytes) * 2 + header <= channel.team.slot_packets;
    }

    __device__ u64 chunks_of(const Chunks& chunks, const Span& span) const {
        return as_packets(span) ? 0 : chunks.count(span.nbytes);
    }

    __device__ void copy_own() {
        const Span &from = out[channel.team.rank], &to = in[channel.team.rank];
        if (from.address == to.address) return;
        for (u64 i = threadIdx.x; i < packs_in(to.kept); i += blockDim.x)
            store_pack(to.address, i, to.kept, load_pack(from.address, i, from.nbytes));
    }

    __device__ void send_packets() {
        const Crew crew(peers());
        for (u32 j = crew.first_job; j < u32(peers()); j += crew.next_job) {
            const int peer = channel.peer(j);
            const Span span = out[peer];
            if (!as_packets(span)) continue;
            Pack* outbox = packets.outbox(peer);
            for (u64 i = crew.member; i < packs_in(span.nbytes); i += crew.members)
                packets.send(outbox, header + u32(i) * 2, load_pack(span.address, i, span.nbytes));
        }
    }

    __device__ bool receive_packets() {
        bool ok = true;
        const Crew crew(peers());
        for (u32 j = crew.first_job; j < u32(peers()); j += crew.next_job) {
            const int peer = channel.peer(j);
            const Span span = in[peer];
            if (!as_packets(span)) continue;
            for (u64 i = crew.member; ok && i < packs_in(span.nbytes); i += crew.members) {
                Pack pack;
                ok = packets.receive(peer, header + u32(i) * 2, pack);
                if (ok) store_pack(span.address, i, span.kept, pack);
            }
        }
        return channel.everyone(ok);
    }

    __device__ bool move_chunks() {
        Chunks chunks(channel);
        u64 steps = 0;
        for (int rank = 0; rank < channel.team.size; ++rank) {
            if (rank == channel.team.rank) continue;
            const u64 sent = chunks_of(chunks, out[rank]), received = chunks_of(chunks, in[rank]);
            steps = sent > steps ? sent : steps;
            steps = received > steps ? received : steps;
        }
        for (u64 k = 0; steps != 0 && k <= steps; ++k) {
            if (k < steps && !send_chunk(chunks, k)) return false;
            if (k > 0 && !take_chunk(chunks, k - 1)) return false;
        }
        return true;
    }

    __device__ bool send_chunk(Chunks& chunks, u64 k) {
        const int rank = int(threadIdx.x);
        const bool mine = channel.is_peer(rank) && k < chunks_of(chunks, out[rank]);
        if (!channel.everyone(!mine || chunks.wait_for_place(0, rank, k))) return false;
        const Crew crew(peers());
        for (u32 j = crew.first_job; j < u32(peers()); j += crew.next_job) {
            const int peer = channel.peer(j);
            const Span span = out[peer];
            if (k >= chunks_of(chunks, span)) continue;
            const u64 begin = k * chunks.nbytes, nbytes = smaller(chunks.nbytes, span.nbytes - begin);
            Pack* place = chunks.place(0, peer, channel.team.rank, k);
            for (u64 i = crew.member; i < packs_in(nbytes); i += crew.members)
                put_pack(place + i, load_pack(span.address + begin, i, nbytes));
        }
        __syncthreads();
        if (mine) chunks.signal_stored(0, rank, k);
        return true;
    }

    __device__ bool take_chunk(Chunks& chunks, u64 k) {
        const int rank = int(threadIdx.x);
        const bool mine = channel.is_peer(rank) && k < chunks_of(chunks, in[rank]);
        if (!channel.everyone(!mine || chunks.wait_for_chunk(0, rank, k))) return false;
        const Crew crew(peers());
        for (u32 j = crew.first_job; j < u32(peers()); j += crew.next_job) {
            const int peer = channel.peer(j);
            const Span span = in[peer];
            const u64 begin = k * chunks.nbytes;
            if (k >= chunks_of(chunks, span) || begin >= span.kept) continue;
            const u64 nbytes = smaller(chunks.nbytes, span.kept - begin);
            const Pack* place = chunks.place(0, channel.team.rank, peer, k);
            for (u64 i = crew.member; i < packs_in(nbytes); i += crew.members)
                store_pack(span.address + begin, i, nbytes, get_pack(place + i));
        }
        __syncthreads();
        if (mine) chunks.signal_read(0, rank, k);
        return true;
    }
};

// This block's part of a message, as a span.
__device__ __forceinline__ Span part_of(const char* message, u64 nbytes) {
    const Part part(nbytes, gridDim.x, blockIdx.x);
    return Span{const_cast<char*>(message) + part.begin, part.nbytes, part.nbytes};
}

// A whole operation whose spans are known at once: `out(rank)` and `in(rank)` give them.
template <class Out, class In>
__device__ void exchange_all(const Team& team, Out out_span, In in_span) {
    __shared__ Span out[kMaxRanks], in[kMaxRanks];
    Channel channel(team);
    Packets packets(channel);
    const int rank = int(threadIdx.x);
    if (rank < team.size) {
        out[rank] = out_span(rank);
        in[rank] = in_span(rank);
    }
    if (packets.await_free()) Exchange{channel, packets, out, in, 0}.run();
    channel.leave();
}
