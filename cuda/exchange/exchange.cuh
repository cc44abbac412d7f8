// Moving bytes between every pair of ranks: as packets, as lines, straight to their place, or as chunks, pair by pair.
//
// A movement operation (Bcast, Allgather, Alltoall, Alltoallv …) says, for its block, what goes to each
// rank and where what comes from each rank belongs; `Exchange` does the rest. Sender and receiver know
// the length, so both know without asking which way a span takes:
//   * a short span goes as packets, one of medium length as lines: all leave, then all are awaited;
//   * for a longer one the receiver says in a packet where it belongs, if that is in a window (window.cuh). The
//     sender stores it there and signals once;
//   * if not, it goes as chunks.
//
// In place is fine where a span's source and destination are the same bytes: a pack or chunk is sent before
// the one that replaces it is stored, by the same thread (packets, lines) or in an earlier round (chunks). Such a span is
// never stored straight to its place: there, the receiver has yet to send what it replaces.
#pragma once
#include "exchange/exchange_chunks.cuh"
#include "exchange/span_ways.cuh"
#include "protocol/window.cuh"

// Where the packs of what is sent come from: from where the span is.
struct StoredPacks {
    __device__ __forceinline__ Pack operator()(const char* address, u64 i, u64 nbytes) const {
        return load_pack(address, i, nbytes);
    }
    // All packs of a message, to memory that may be a peer's, or stays this rank's.
    template <bool kPut>
    __device__ __forceinline__ void copy(u32 member, u32 members, const char* from, void* to, u64 nbytes) const {
        copy_packs<kPut>(member, members, from, to, nbytes);
    }
};

template <class Load>
struct ExchangeOf {
    Channel& channel;
    Packets& packets;
    Spans& spans;
    const SpanWays& ways;
    const Load load = {};

    // All threads, after a barrier that made `out` visible; the packet slots are free. What goes as packets leaves. A thread
    // sends what it will receive, so that in place nothing is replaced before it has left.
    __device__ void send() {
        const Crew& crew = ways.crew;
        for (u32 j = crew.first_job; j < u32(peers()); j += crew.next_job) {
            const int peer = channel.peer(j);
            const Span span = spans.out[peer];
            if (ways.is_long(span)) continue;
            if (ways.is_medium(span)) {
                const Lines lines(channel);
                lines.send_message(crew.member / 32, crew.members / 32, lines.outbox(peer), packs_in(span.nbytes),
                                   [&](u64 i) { return load(span.address, i, span.nbytes); });
                continue;
            }
            Pack* outbox = packets.outbox(peer);
            for (u64 i = crew.member; i < packs_in(span.nbytes); i += crew.members)
                packets.send(outbox, kHeader + u32(i) * 2, load(span.address, i, span.nbytes));
        }
    }

    // All threads, after the spans have been shared; false: leave.
    __device__ bool receive() {
        const int peer = int(threadIdx.x);
        if (ways.has_windows() && channel.is_peer(peer) && ways.is_long(spans.in[peer]))
            packets.send_word(packets.outbox(peer), kPlacePacket, place_for(peer));
        if (!receive_packets()) return false;
        if (!ways.any_long) return true;
        if (!learn_places()) return false;
        if (any_straight()) store_straight();
        return move_chunks() && await_straight();
    }

  private:
    __device__ int peers() const { return channel.team.size - 1; }

    __device__ bool any_straight() const {
        bool any = false;
        for (int j = 0; j < peers(); ++j) any |= spans.place[channel.peer(j)] != nullptr;
        return any;
    }

    // A span that comes from a peer replaces the one that goes to it.
    __device__ bool in_place(int peer) const {
        return spans.in[peer].address == spans.out[peer].address && spans.out[peer].nbytes > 0;
    }

    // What `peer` is told of its long span: where it belongs, or 0 if it has to go through the ring.
    __device__ u64 place_for(int peer) const {
        const Span& to = spans.in[peer];
        return in_place(peer) || to.kept < to.nbytes ? 0 : pack_place(channel.team.recv, to.address);
    }

    __device__ bool comes_straight(int peer) const { return ways.is_long(spans.in[peer]) && place_for(peer) != 0; }

    // All threads wait for what the peers say of this rank's long spans, and until they have entered the operation:
    // what was there before has been used by then.
    __device__ bool learn_places() {
        const int peer = int(threadIdx.x);
        bool ok = true;
        if (channel.is_peer(peer)) {
            u64 word = 0;
            if (ways.has_windows() && ways.is_long(spans.out[peer]))
                ok = packets.receive_word(peer, kPlacePacket, word) && channel.wait_for_entered(peer, channel.epoch);
            spans.place[peer] = unpack_place(channel.team, peer, word);
        }
        return channel.everyone(ok);
    }

    // One peer after the other, each rank to another one. Meanwhile some warps copy what stays.
    __device__ void store_straight() {
        const u32 copiers = copies_long() ? 32 * copying_warps() : 0, senders = blockDim.x - copiers;
        if (threadIdx.x >= senders) copy_own(threadIdx.x - senders, copiers);
        else
            for (int j = 0; j < peers(); ++j)
                if (spans.place[channel.peer(j)] != nullptr) store_to(channel.peer(j), senders);
        __syncthreads();
        if (copiers == 0 && copies_long()) copy_own(threadIdx.x, blockDim.x);
        const int peer = int(threadIdx.x);
        if (!channel.is_peer(peer) || spans.place[peer] == nullptr) return;
        fence_sys();
        Chunks(channel, 1).signal_stored(0, peer, 0);
    }

    // A share of the warps as large as that of the bytes which stay.
    __device__ u32 copying_warps() const {
        const u64 warps = blockDim.x / 32, own = spans.in[channel.team.rank].kept;
        u64 sent = 0;
        for (int j = 0; j < peers(); ++j)
            if (spans.place[channel.peer(j)] != nullptr) sent += spans.out[channel.peer(j)].nbytes;
        return u32(warps * own / (own + sent));
    }

    __device__ void store_to(int peer, u32 threads) {
        const Span& span = spans.out[peer];
        load.template copy<true>(threadIdx.x, threads, span.address, spans.place[peer], span.nbytes);
    }

    __device__ bool await_straight() {
        const int peer = int(threadIdx.x);
        const bool wait = channel.is_peer(peer) && comes_straight(peer);
        return channel.everyone(!wait || Chunks(channel, 1).wait_for_chunk(0, peer, 0));
    }

    // Is there a long span that stays on this rank, and has to be copied?
    __device__ bool copies_long() const {
        const int me = channel.team.rank;
        return ways.is_long(spans.in[me]) && spans.in[me].address != spans.out[me].address;
    }

    __device__ void copy_own(u32 thread, u32 threads) {
        const Span &from = spans.out[channel.team.rank], &to = spans.in[channel.team.rank];
        if (from.address != to.address) load.template copy<false>(thread, threads, from.address, to.address, to.kept);
    }

    __device__ bool receive_packets() {
        bool ok = true;
        const Crew& crew = ways.crew;
        for (u32 j = crew.first_job; j <= u32(peers()); j += crew.next_job) {
            const int peer = channel.peer(j);
            const Span span = spans.in[peer];
            if (ways.is_long(span)) continue;
            if (peer == channel.team.rank) copy_own(crew.member, crew.members);
            if (peer == channel.team.rank) continue;
            if (ways.is_medium(span)) {
                const u32 member = crew.member / 32, members = crew.members / 32;
                ok = __all_sync(0xffffffffu, ok) != 0;  // a warp goes on together, or not at all
                ok = ok && Lines(channel).receive_message(member, members, peer, span.address, span.nbytes, span.kept);
                continue;
            }
            for (u64 i = crew.member; ok && i < packs_in(span.nbytes); i += crew.members) {
                Pack pack;
                ok = packets.receive(peer, kHeader + u32(i) * 2, pack);
                if (ok) store_pack(span.address, i, span.kept, pack);
            }
        }
        return channel.everyone(ok);
    }

    // All threads. How much of a span goes as chunks: all or nothing.
    __device__ bool move_chunks() {
        const int peer = int(threadIdx.x);
        if (channel.is_peer(peer)) {
            const Span &to = spans.out[peer], &from = spans.in[peer];
            spans.stored[peer] = ways.is_long(to) && spans.place[peer] == nullptr ? to.nbytes : 0;
            spans.taken[peer] = ways.is_long(from) && !comes_straight(peer) ? from.nbytes : 0;
        }
        __syncthreads();
        const bool copies = copies_long() && !any_straight();
        return ChunkExchange<Load>(channel, spans, load)
            .run(in_place(), copies, [&](const Crew& crew) { copy_own(crew.member, crew.members); });
    }

    __device__ bool in_place() const {
        bool any = false;
        for (int j = 0; j < peers(); ++j) any |= in_place(channel.peer(j));
        return any;
    }
};

using Exchange = ExchangeOf<StoredPacks>;

// A whole operation whose spans are known at once: `out(rank)` and `in(rank)` give them.
template <class Out, class In, class Load = StoredPacks>
__device__ void exchange_all(const Team& team, Out out_span, In in_span, bool both_ways = true, Load load = {}) {
    __shared__ Spans spans;
    const int rank = int(threadIdx.x);
    if (rank < team.size) {
        spans.out[rank] = out_span(rank);
        spans.in[rank] = in_span(rank);
    }
    SpanWays ways(team, both_ways);
    ways.share(spans);
    Channel channel(team);
    Packets packets(channel);
    ExchangeOf<Load> exchange{channel, packets, spans, ways, load};
    bool ok = channel.await_slots();
    if (ok) {
        exchange.send();
        ok = exchange.receive();
    }
    channel.leave(ok && (!channel.is_peer(rank) || spans.in[rank].nbytes > 0));
}
