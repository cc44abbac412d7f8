// Moves of blocks whose lengths only the sender has: each message is preceded by its length.
//
//   1. The first packet of a slot has the message's length; the message follows at once.
//   2. The receiver computes where it belongs, and how much of it fits.
//   3. The rest is as in exchange.cuh.
// Data that is longer than the receiver's place also arrives, but is not stored. So a wrong count is an error and not a
// hang.
#pragma once
#include "exchange/exchange.cuh"

struct Block {
    const char* address;
    u64 nbytes;  // bytes of the message; for a receiver, of its place
};

// sends(from, to): whether there is a message; out(rank): this rank's message to `rank`; in(rank): the place for the
// message from `rank`. `out` and `in` are called only if there is a message.
template <class Sends, class Out, class In>
__device__ void exchange_announced(const Team& team, Sends sends, Out out_block, In in_block) {
    __shared__ Spans spans;
    const int me = team.rank, rank = int(threadIdx.x);
    const bool to_rank = rank < team.size && sends(me, rank), from_rank = rank < team.size && sends(rank, me);
    const Block block = to_rank ? out_block(rank) : Block{nullptr, 0};
    if (rank < team.size) spans.out[rank] = part_of(block.address, block.nbytes);
    SpanWays ways(team);
    __syncthreads();
    Channel channel(team);
    Packets packets(channel);
    bool ok = channel.await_slots();
    u64 nbytes = rank == me ? block.nbytes : 0;  // bytes that `rank` sends to this rank
    if (ok && to_rank && rank != me) packets.send_word(packets.outbox(rank), kCountPacket, block.nbytes);
    Exchange exchange{channel, packets, spans, ways};
    if (ok) exchange.send();
    if (ok && from_rank && rank != me) ok = packets.receive_word(rank, kCountPacket, nbytes);
    ok = channel.everyone(ok);
    if (ok && rank < team.size) {
        const Block place = from_rank ? in_block(rank) : Block{nullptr, 0};
        Span& span = spans.in[rank];
        span = part_of(place.address, nbytes);
        const u64 begin = u64(span.address - place.address);
        span.kept = begin < place.nbytes ? smaller(span.nbytes, place.nbytes - begin) : 0;
        if (blockIdx.x == 0 && nbytes > place.nbytes)
            record_overflow(team, kTruncated, rank, i64(nbytes), i64(place.nbytes));
    }
    ways.share(spans);
    ok = ok && exchange.receive(channel.compare([&](int peer) { return sends(peer, me); }));
    channel.leave(ok && (from_rank || !channel.is_peer(rank)));
}
