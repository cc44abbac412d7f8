// Moves between every pair of ranks: as packets, as lines, straight to their place, or as chunks, each pair by itself.
//
// For each block, an operation (Bcast, Alltoallv …) fills in the data for each rank, and the places for data from each
// rank (Spans). Sender and receiver compute the transport of a span from its length:
//   1. Short spans leave as packets, medium ones as lines.
//   2. For a long span the receiver sends its place in a packet, if that is in a window (window.cuh), else 0.
//   3. Packets and lines are received. Own data is copied meanwhile.
//   4. Long spans with a place are stored straight there, after the receiver has entered the operation; one fence and signal
//      follow.
//   5. Other long spans go as chunks (exchange_chunks.cuh).
//
// In place works where a span's source and destination are the same bytes: a pack or chunk is sent before the one that
// replaces it is stored, by the same thread (packets, lines) or in an earlier round (chunks). Such a span never goes
// straight to its place: there, the receiver has yet to send what it replaces.
// Launch: one block for each channel in use, up to kMaxThreads threads.
#pragma once
#include "exchange/exchange_chunks.cuh"
#include "exchange/span_ways.cuh"
#include "protocol/window.cuh"

// Loads the packs that are sent: from the span itself.
struct StoredPacks {
    __device__ __forceinline__ Pack operator()(const char* address, u64 i, u64 nbytes) const {
        return load_pack(address, i, nbytes);
    }
    // Copies a message; with kPut to memory that may be a peer's.
    template <bool kPut>
    __device__ __forceinline__ void copy(u32 member, u32 members, const char* from, void* to, u64 nbytes) const {
        copy_packs<kPut>(member, members, from, to, nbytes);
    }
};

template <class Load, bool kLong = true>
struct ExchangeOf {
    Channel& channel;
    Packets& packets;
    Spans& spans;
    const SpanWaysOf<kLong>& ways;
    const Load load = {};

    // All threads, after a barrier that made `out` visible, once the slots are free: sends packets and lines. A thread sends
    // the packs that it will receive, so that in place none is replaced before it has left.
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

    // All threads, after the spans have been shared; `ok`: whether the thread has seen no failure. False: leave.
    __device__ bool receive(bool ok) {
        if constexpr (!kLong) return receive_packets(ok);
        const int peer = int(threadIdx.x);
        if (ways.has_windows() && channel.is_peer(peer) && ways.is_long(spans.in[peer]))
            packets.send_word(packets.outbox(peer), kPlacePacket, place_for(peer));
        if (!receive_packets(ok)) return false;
        if (!ways.any_long) return true;
        if (!receive_places()) return false;
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

    // The word for `peer` about its long span: where it belongs, or 0 if it has to go as chunks.
    __device__ u64 place_for(int peer) const {
        const Span& to = spans.in[peer];
        return in_place(peer) || to.kept < to.nbytes ? 0 : pack_place(channel.team.recv, to.address);
    }

    __device__ bool comes_straight(int peer) const { return ways.is_long(spans.in[peer]) && place_for(peer) != 0; }

    // All threads wait for the places of this rank's long spans, and until the peers have entered the operation: by then they
    // have used the earlier contents. False: leave.
    __device__ bool receive_places() {
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

    // Stores to one peer after the other, each rank to a different one. Some warps copy this rank's own span meanwhile.
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

    // The share of the warps that equals this rank's own share of the bytes.
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

    // Whether this rank's own span is long and has to be copied.
    __device__ bool copies_long() const {
        const int me = channel.team.rank;
        return ways.is_long(spans.in[me]) && spans.in[me].address != spans.out[me].address;
    }

    __device__ void copy_own(u32 thread, u32 threads) {
        const Span &from = spans.out[channel.team.rank], &to = spans.in[channel.team.rank];
        if (from.address != to.address) load.template copy<false>(thread, threads, from.address, to.address, to.kept);
    }

    __device__ bool receive_packets(bool ok) {
        const Crew& crew = ways.crew;
        for (u32 j = crew.first_job; j <= u32(peers()); j += crew.next_job) {
            const int peer = channel.peer(j);
            const Span span = spans.in[peer];
            if (ways.is_long(span)) continue;
            if (peer == channel.team.rank) copy_own(crew.member, crew.members);
            if (peer == channel.team.rank) continue;
            if (ways.is_medium(span)) {
                const u32 member = crew.member / 32, members = crew.members / 32;
                ok = __all_sync(0xffffffffu, ok) != 0;  // the whole warp continues, or none of it
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

    // All threads. A span goes as chunks as a whole, or not at all. False: leave.
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

// A whole operation, with its spans from out(rank) and in(rank). Without kLong messages go as packets and lines. The
// code for long messages takes more than half of the time to compile, so it is in a separate kernel.
template <bool kLong, class Out, class In, class Load = StoredPacks>
__device__ void exchange_all(const Team& team, Out out_span, In in_span, bool both_ways = true, Load load = {}) {
    __shared__ Spans spans;
    const int rank = int(threadIdx.x);
    if (rank < team.size) {
        spans.out[rank] = out_span(rank);
        spans.in[rank] = in_span(rank);
    }
    SpanWaysOf<kLong> ways(team, both_ways);
    ways.share(spans);
    Channel channel(team);
    Packets packets(channel);
    ExchangeOf<Load, kLong> exchange{channel, packets, spans, ways, load};
    bool ok = channel.await_slots();
    if (ok) {
        exchange.send();
        ok = exchange.receive(channel.compare(
            [&](int peer) { return ways.goes_as_packets(spans.in[peer]) || spans.are_empty(team.size); }));
    }
    channel.leave(ok && (!channel.is_peer(rank) || spans.in[rank].nbytes > 0));
}
