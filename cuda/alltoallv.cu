// Alltoallv: rank s sends `send_counts[r]` rows to rank r; the counts stay on the device.
//
// One launch, whatever the counts:
//   1. every rank tells every peer how many rows it will send: the first packet of the slot;
//   2. the receiver learns from them where each source's rows begin and how many of them fit;
//   3. the rows move (exchange.cuh): packets if they are few, chunks if they are many, pair by pair;
//   4. block 0 writes counts, displacements, total and status for the caller.
//
// kPacked: the sources' rows follow each other. kSlots: source s's rows begin at its slot. kSender: in its slot they
// have the place that they have in its buffer. kPlaced: they begin where the receiver says, on the device.
// kFixed: MPI's static form, counts and displacements given on both sides.
// A rank with no room takes part all the same: rows past the capacity arrive in the ring and are not
// stored. Every block learns all counts for itself; a packet more a block is cheaper than a grid barrier.
//
// In place holds for kFixed with equal counts on both sides, as MPI asks for. The contract follows
// AllToAllvDynamic of NCCLX (arXiv 2510.20171) with the capacity enforced and the results on the device.
#include "exchange.cuh"
#include "rows.cuh"

struct Asked {  // what the caller wants sent, in shared memory
    i64 counts[kMaxRanks], displs[kMaxRanks];
};

// The count and, if given, the displacement for `rank`.
__device__ Row asked_for(const AlltoallvArgs& args, int rank) {
    if (args.placement == kFixed) return Row{args.fixed[0][rank], args.fixed[1][rank], 0};
    return Row{args.send_counts[rank], args.send_displs ? args.send_displs[rank] : 0, 0};
}

// What this rank sends to `rank`: as asked, but nothing outside sendbuf. No rows may begin anywhere.
__device__ Row row_to(const AlltoallvArgs& args, const Asked& asked, int rank) {
    const i64* counts = asked.counts;
    if (counts[rank] == 0) return Row{0, 0, 0};
    i64 displ = asked.displs[rank];
    if (args.placement != kFixed && !args.send_displs)
        for (int before = 0; before < rank; ++before) displ += counts[before] > 0 ? counts[before] : 0;
    const bool inside = counts[rank] >= 0 && displ >= 0 && displ <= args.send_rows && counts[rank] <= args.send_rows - displ;
    if (inside) return Row{counts[rank], displ, counts[rank]};
    if (blockIdx.x == 0) record_overflow(args.team, kBadCounts, rank, counts[rank], args.send_rows);
    return Row{0, 0, 0};
}

// What the receiver is told of a row: how many, and for kSender where they begin. A sendbuf has less than 2^32 rows then.
__device__ u64 announced(const AlltoallvArgs& args, const Row& row) {
    return u64(row.count) | (args.placement == kSender ? u64(row.displ) << 32 : 0);
}

// This block's part of the rows.
__device__ Span span_of(const AlltoallvArgs& args, const char* buffer, const Row& row) {
    Span span = part_of(buffer + row.displ * args.row_nbytes, row.count * args.row_nbytes);
    const u64 begin = span.address - (buffer + row.displ * args.row_nbytes), room = row.kept * args.row_nbytes;
    span.kept = begin < room ? smaller(span.nbytes, room - begin) : 0;
    return span;
}

__global__ void __launch_bounds__(kMaxThreads, 1) alltoallv(const __grid_constant__ AlltoallvArgs args) {
    __shared__ Spans spans;
    __shared__ Asked asked;
    __shared__ i64 received[kMaxRanks], kept[kMaxRanks];
    const Team& team = args.team;
    const int rank = int(threadIdx.x);
    SpanWays ways(team);
    await_previous(Channel::known(team) ^ ways.crew.members);  // before the counts are looked at
    const Row wanted = rank < team.size ? asked_for(args, rank) : Row{};  // on its way while the channel looks for its epoch
    Channel channel(team);
    Packets packets(channel);
    if (rank < team.size) {
        asked.counts[rank] = wanted.count;
        asked.displs[rank] = wanted.displ;
    }
    bool ok = channel.everyone(channel.await_slots());
    if (rank < team.size) {
        const Row row = row_to(args, asked, rank);
        spans.out[rank] = span_of(args, args.send, row);
        received[rank] = i64(announced(args, row));  // right for this rank itself, and what the peer is told
        if (ok && rank != team.rank) packets.send_word(packets.outbox(rank), kCountPacket, announced(args, row));
    }
    __syncthreads();
    Exchange exchange{channel, packets, spans, ways};
    if (ok) exchange.send();
    if (ok && channel.is_peer(rank)) {
        u64 word = 0;
        ok = packets.receive_word(rank, kCountPacket, word);
        received[rank] = i64(word);
    }
    ok = channel.everyone(ok);
    if (ok && rank < team.size) {
        const Row row = row_from(args, received, rank);
        spans.in[rank] = span_of(args, args.recv, row);
        kept[rank] = row.kept;
    }
    ways.share(spans);
    const int source = int(blockDim.x - 1 - threadIdx.x);  // the last warp: the first have packets to take
    if (ok && blockIdx.x == 0 && source < team.size) write_outputs(args, row_from(args, received, source), kept, source);
    channel.leave(ok && exchange.receive());
}
