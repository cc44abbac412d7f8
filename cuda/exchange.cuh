// Moving bytes between every pair of ranks, by packets or by chunks as each pair's length suggests.
//
// A movement operation (Bcast, Allgather, Alltoall, Alltoallv …) says, for its block, what goes to each
// rank and where what comes from each rank belongs; `Exchange` does the rest. Sender and receiver know
// the length, so both know without asking which way a span takes:
//   * a span that fits a packet slot goes as packets: all leave, then all are awaited;
//   * a longer one goes as chunks: step k stores chunk k for every peer and takes chunk k - 1 of every peer.
//
// In place is fine where a span's source and destination are the same bytes: a pack or chunk is sent before
// the one that replaces it is stored, by the same thread (packets) or in an earlier step (chunks).
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

    // All threads, after a barrier that made `out` visible; the packet slots are free. What goes as packets leaves.
    __device__ void send() {
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

    // All threads, after a barrier that made `in` visible; false: leave.
    __device__ bool receive() {
        copy_own();
        return receive_packets() && move_chunks();
    }

  private:
    __device__ int peers() const { return channel.team.size - 1; }

    __device__ bool as_packets(const Span& span) const {
        return packs_in(span.nbytes) * 2 + header <= channel.team.slot_packets;
    }

    __device__ void copy_own() {
        const Span &from = out[channel.team.rank], &to = in[channel.team.rank];
        if (from.address == to.address) return;
        move_packs(
            threadIdx.x, packs_in(to.kept), blockDim.x,
            [&](u64 i) { return load_pack(from.address, i, from.nbytes); },
            [&](u64 i, Pack pack) { store_pack(to.address, i, to.kept, pack); });
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
        Chunks chunks(channel, 1);
        u64 longest = 0;
        for (int rank = 0; rank < channel.team.size; ++rank) {
            if (rank == channel.team.rank) continue;
            if (!as_packets(out[rank]) && out[rank].nbytes > longest) longest = out[rank].nbytes;
            if (!as_packets(in[rank]) && in[rank].nbytes > longest) longest = in[rank].nbytes;
        }
        const u64 count = (longest + chunks.nbytes - 1) / chunks.nbytes;
        for (u64 k = 0; count != 0 && k < count + 1; ++k)
            if (!step(chunks, k, k - 1)) return false;
        return true;
    }

    __device__ bool has_chunk(const Chunks& chunks, const Span& span, u64 k) const {
        return !as_packets(span) && i64(k) >= 0 && k * chunks.nbytes < span.nbytes;
    }

    // Stores chunk `sent` of every span and takes chunk `taken`, where there is one.
    __device__ bool step(Chunks& chunks, u64 sent, u64 taken) {
        const auto sends = [&](int peer) { return has_chunk(chunks, out[peer], sent); };
        const auto takes = [&](int peer) { return has_chunk(chunks, in[peer], taken); };
        const bool ready = chunks.await(2, [&](u32 kind, int peer) {
            return kind == 0 ? !sends(peer) || chunks.wait_for_place(0, peer, sent)
                             : !takes(peer) || chunks.wait_for_chunk(0, peer, taken);
        });
        if (!ready) return false;
        const Crew crew(2 * peers());
        for (u32 job = crew.first_job; job < 2u * peers(); job += crew.next_job) {
            const int peer = channel.peer(int(job) % peers());
            if (job < u32(peers()) && sends(peer)) store_chunk(chunks, crew, peer, sent);
            if (job >= u32(peers()) && takes(peer)) take_chunk(chunks, crew, peer, taken);
        }
        __syncthreads();
        const int peer = int(threadIdx.x);
        if (!channel.is_peer(peer) || (!sends(peer) && !takes(peer))) return true;
        fence_sys();
        if (sends(peer)) chunks.signal_stored(0, peer, sent);
        if (takes(peer)) chunks.signal_read(0, peer, taken);
        return true;
    }

    __device__ void store_chunk(const Chunks& chunks, const Crew& crew, int peer, u64 k) {
        const u64 begin = k * chunks.nbytes, nbytes = smaller(chunks.nbytes, out[peer].nbytes - begin);
        const char* from = out[peer].address + begin;
        Pack* place = chunks.place(0, peer, channel.team.rank, k);
        move_packs(
            crew.member, packs_in(nbytes), crew.members,
            [&](u64 i) { return load_pack(from, i, nbytes); },
            [&](u64 i, Pack pack) { put_pack(place + i, pack); });
    }

    __device__ void take_chunk(const Chunks& chunks, const Crew& crew, int peer, u64 k) {
        const u64 begin = smaller(k * chunks.nbytes, in[peer].kept);
        const u64 nbytes = smaller(chunks.nbytes, in[peer].kept - begin);
        char* to = in[peer].address + begin;
        const Pack* place = chunks.place(0, channel.team.rank, peer, k);
        move_packs(
            crew.member, packs_in(nbytes), crew.members,
            [&](u64 i) { return get_pack(place + i); },
            [&](u64 i, Pack pack) { store_pack(to, i, nbytes, pack); });
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
    __syncthreads();
    bool ok = packets.await_free();
    if (ok) {
        Exchange exchange{channel, packets, out, in, 0};
        exchange.send();
        ok = exchange.receive();
    }
    channel.leave(ok && (!channel.is_peer(rank) || in[rank].nbytes > 0));
}
