// Moving bytes between every pair of ranks: by packets, straight to their place, or by chunks, pair by pair.
//
// A movement operation (Bcast, Allgather, Alltoall, Alltoallv …) says, for its block, what goes to each
// rank and where what comes from each rank belongs; `Exchange` does the rest. Sender and receiver know
// the length, so both know without asking which way a span takes:
//   * a span that fits a packet slot goes as packets: all leave, then all are awaited;
//   * for a longer one the receiver says in a packet where it belongs, if that is in a window (window.cuh). The
//     sender stores it there and signals once;
//   * if not, it goes as chunks: step k stores chunk k for every peer and takes chunk k - 1 of every peer.
//
// In place is fine where a span's source and destination are the same bytes: a pack or chunk is sent before
// the one that replaces it is stored, by the same thread (packets) or in an earlier step (chunks). Such a span is
// never stored straight to its place: there, the receiver has yet to send what it replaces.
#pragma once
#include "chunk.cuh"
#include "packet.cuh"
#include "vector.cuh"
#include "window.cuh"

constexpr u32 kHeader = 2;        // packets at the start of every slot that carry no payload:
constexpr u32 kCountPacket = 0;   //   for the operation's own use,
constexpr u32 kPlacePacket = 1;   //   where a long span belongs

struct Span {
    char* address;
    u64 nbytes;  // that travel
    u64 kept;    // of them, what the receiver stores: the rest did not fit its buffer
};

struct Spans {  // of one block, in shared memory; [rank]
    Span out[kMaxRanks], in[kMaxRanks];
    char* place[kMaxRanks];  // in the peer's memory, for what goes straight there; null: by packets or chunks
};

struct Exchange {
    Channel& channel;
    Packets& packets;
    Spans& spans;

    // All threads, after a barrier that made `out` visible; the packet slots are free. What goes as packets leaves.
    __device__ void send() {
        const Crew crew(peers());
        for (u32 j = crew.first_job; j < u32(peers()); j += crew.next_job) {
            const int peer = channel.peer(j);
            const Span span = spans.out[peer];
            if (is_long(span)) continue;
            Pack* outbox = packets.outbox(peer);
            for (u64 i = crew.member; i < packs_in(span.nbytes); i += crew.members)
                packets.send(outbox, kHeader + u32(i) * 2, load_pack(span.address, i, span.nbytes));
        }
    }

    // All threads, after a barrier that made `in` visible; false: leave.
    __device__ bool receive() {
        const int peer = int(threadIdx.x);
        if (channel.is_peer(peer) && is_long(spans.in[peer]))
            packets.send_word(packets.outbox(peer), kPlacePacket, place_for(peer));
        const bool long_one = is_long(spans.in[channel.team.rank]);
        if (!long_one) copy_own();
        if (!receive_packets() || !learn_places()) return false;
        store_straight();
        if (long_one) copy_own();
        return move_chunks() && await_straight();
    }

  private:
    __device__ int peers() const { return channel.team.size - 1; }

    __device__ bool is_long(const Span& span) const {
        return packs_in(span.nbytes) * 2 + kHeader > channel.team.slot_packets;
    }

    // What `peer` is told of its long span: where it belongs, or 0 if it has to go through the ring.
    __device__ u64 place_for(int peer) const {
        const Span &to = spans.in[peer], &from = spans.out[peer];
        const bool in_place = to.address == from.address && from.nbytes > 0;
        return in_place || to.kept < to.nbytes ? 0 : pack_place(channel.team.recv, to.address);
    }

    __device__ bool comes_straight(int peer) const { return is_long(spans.in[peer]) && place_for(peer) != 0; }

    // All threads wait for what the peers say of this rank's long spans, and until they have entered the operation:
    // what was there before has been used by then.
    __device__ bool learn_places() {
        const int peer = int(threadIdx.x);
        bool ok = true;
        if (channel.is_peer(peer)) {
            u64 word = 0;
            if (is_long(spans.out[peer]))
                ok = packets.receive_word(peer, kPlacePacket, word) && channel.wait_for_entered(peer, channel.epoch);
            spans.place[peer] = unpack_place(channel.team, peer, word);
        }
        return channel.everyone(ok);
    }

    // One peer after the other: the ranks are about in step, and each then stores to another one.
    __device__ void store_straight() {
        for (int j = 0; j < peers(); ++j) {
            const int peer = channel.peer(j);
            const Span& span = spans.out[peer];
            if (spans.place[peer] == nullptr) continue;
            move_packs(
                threadIdx.x, packs_in(span.nbytes), blockDim.x,
                [&](u64 i) { return load_pack(span.address, i, span.nbytes); },
                [&](u64 i, Pack pack) { put_pack(spans.place[peer], i, span.nbytes, pack); });
        }
        __syncthreads();
        const int peer = int(threadIdx.x);
        if (channel.is_peer(peer) && spans.place[peer] != nullptr) {
            fence_sys();
            Chunks(channel, 1).signal_stored(0, peer, 0);
        }
    }

    __device__ bool await_straight() {
        const int peer = int(threadIdx.x);
        const bool wait = channel.is_peer(peer) && comes_straight(peer);
        return channel.everyone(!wait || Chunks(channel, 1).wait_for_chunk(0, peer, 0));
    }

    __device__ void copy_own() {
        const Span &from = spans.out[channel.team.rank], &to = spans.in[channel.team.rank];
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
            const Span span = spans.in[peer];
            if (is_long(span)) continue;
            for (u64 i = crew.member; ok && i < packs_in(span.nbytes); i += crew.members) {
                Pack pack;
                ok = packets.receive(peer, kHeader + u32(i) * 2, pack);
                if (ok) store_pack(span.address, i, span.kept, pack);
            }
        }
        return channel.everyone(ok);
    }

    __device__ bool move_chunks() {
        Chunks chunks(channel, 1);
        u64 longest = 0;
        for (int j = 0; j < peers(); ++j) {
            const int peer = channel.peer(j);
            if (sends_chunks(peer) && spans.out[peer].nbytes > longest) longest = spans.out[peer].nbytes;
            if (takes_chunks(peer) && spans.in[peer].nbytes > longest) longest = spans.in[peer].nbytes;
        }
        const u64 count = (longest + chunks.nbytes - 1) / chunks.nbytes;
        for (u64 k = 0; count != 0 && k < count + 1; ++k)
            if (!step(chunks, k, k - 1)) return false;
        return true;
    }

    __device__ bool sends_chunks(int peer) const { return is_long(spans.out[peer]) && spans.place[peer] == nullptr; }
    __device__ bool takes_chunks(int peer) const { return is_long(spans.in[peer]) && !comes_straight(peer); }

    // False also for the chunk before the first.
    __device__ static bool has_chunk(const Chunks& chunks, const Span& span, u64 k) {
        return i64(k) >= 0 && k * chunks.nbytes < span.nbytes;
    }

    // Stores chunk `sent` of every span and takes chunk `taken`, where there is one.
    __device__ bool step(Chunks& chunks, u64 sent, u64 taken) {
        const auto sends = [&](int peer) { return sends_chunks(peer) && has_chunk(chunks, spans.out[peer], sent); };
        const auto takes = [&](int peer) { return takes_chunks(peer) && has_chunk(chunks, spans.in[peer], taken); };
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
        const u64 begin = k * chunks.nbytes, nbytes = smaller(chunks.nbytes, spans.out[peer].nbytes - begin);
        const char* from = spans.out[peer].address + begin;
        Pack* place = chunks.place(0, peer, channel.team.rank, k);
        move_packs(
            crew.member, packs_in(nbytes), crew.members,
            [&](u64 i) { return load_pack(from, i, nbytes); },
            [&](u64 i, Pack pack) { put_pack(place + i, pack); });
    }

    __device__ void take_chunk(const Chunks& chunks, const Crew& crew, int peer, u64 k) {
        const u64 begin = smaller(k * chunks.nbytes, spans.in[peer].kept);
        const u64 nbytes = smaller(chunks.nbytes, spans.in[peer].kept - begin);
        char* to = spans.in[peer].address + begin;
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
    __shared__ Spans spans;
    Channel channel(team);
    Packets packets(channel);
    const int rank = int(threadIdx.x);
    if (rank < team.size) {
        spans.out[rank] = out_span(rank);
        spans.in[rank] = in_span(rank);
    }
    __syncthreads();
    bool ok = packets.await_free();
    if (ok) {
        Exchange exchange{channel, packets, spans};
        exchange.send();
        ok = exchange.receive();
    }
    channel.leave(ok && (!channel.is_peer(rank) || spans.in[rank].nbytes > 0));
}
