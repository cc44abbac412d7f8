// Alltoallv: rank s sends `send_counts[r]` rows to rank r; the counts stay on the device.
//
// One launch, for any counts:
//   1. every rank sends every peer the number of its rows: the first packet of the slot;
//   2. the receiver computes where each source's rows begin and how many of them fit (rows.cuh);
//   3. the rows move (exchange.cuh): packets if they are few, chunks if they are many, pair by pair;
//   4. block 0 writes counts, displacements, total and status for the caller.
// Every block exchanges all counts itself: one more packet for each block is cheaper than a barrier over the grid.
//
// kPacked: the sources' rows follow each other. kSlots: the rows of source s begin at its slot. kSender: in the slot they
// have the place that they have in the sender's buffer. kPlaced: the receiver gives the places, on the device. kFixed:
// MPI's form, with counts and displacements on both sides. A rank without room also takes part: rows past the capacity
// arrive in the ring and are not stored.
//
// In place works for kFixed with equal counts on both sides, as MPI demands. The contract is that of AllToAllvDynamic of
// NCCLX (arXiv 2510.20171), with the capacity enforced and the results on the device.
// Launch: one block for each channel in use, up to kMaxThreads threads. Twin: pyncclx/numba_kernels/alltoallv.py.
#include "exchange/exchange.cuh"
#include "exchange/rows.cuh"

// The count for `rank`, and the displacement if there is one.
__device__ Row asked_for(const AlltoallvArgs& args, int rank) {
    if (args.placement == kFixed) return Row{args.fixed[0][rank], args.fixed[1][rank], 0};
    return Row{args.send_counts[rank], args.send_displs ? args.send_displs[rank] : 0, 0};
}

// The rows for the lane's rank: as asked for, but none outside sendbuf. If there are none, any displacement is valid. All
// lanes of a warp.
__device__ Row row_to(const AlltoallvArgs& args, const Row& asked) {
    const bool follows = args.placement != kFixed && !args.send_displs;  // the rows for the previous rank
    const i64 count = asked.count, before = sum_before(follows && count > 0 ? count : 0), displ = follows ? before : asked.displ;
    if (count == 0) return Row{0, 0, 0};
    const bool inside = count >= 0 && displ >= 0 && displ <= args.send_rows && count <= args.send_rows - displ;
    if (inside) return Row{count, displ, count};
    if (blockIdx.x == 0) record_overflow(args.team, kBadCounts, int(threadIdx.x % 32), count, args.send_rows);
    return Row{0, 0, 0};
}

// The word for a receiver: how many rows, and for kSender where they begin. A sendbuf has fewer than 2^32 rows then.
__device__ u64 count_word(const AlltoallvArgs& args, const Row& row) {
    return u64(row.count) | (args.placement == kSender ? u64(row.displ) << 32 : 0);
}

// This block's part of the rows.
__device__ Span span_of(const AlltoallvArgs& args, const char* buffer, const Row& row) {
    Span span = part_of(buffer + row.displ * args.row_nbytes, row.count * args.row_nbytes);
    const u64 begin = span.address - (buffer + row.displ * args.row_nbytes), room = row.kept * args.row_nbytes;
    span.kept = begin < room ? smaller(span.nbytes, room - begin) : 0;
    return span;
}

// Thread r of the first warp computes what goes to rank r, and what comes from it.
__global__ void __launch_bounds__(kMaxThreads, 1) alltoallv(const __grid_constant__ AlltoallvArgs args) {
    __shared__ Spans spans;
    __shared__ i64 received[kMaxRanks];
    __shared__ bool all_came;
    const Team& team = args.team;
    const int rank = int(threadIdx.x);
    const u32 warp = threadIdx.x / 32, last = blockDim.x / 32 - 1;
    SpanWays ways(team);
    await_previous(Channel::dependency(team) ^ ways.crew.members);  // before the counts are read
    const Row wanted = rank < team.size ? asked_for(args, rank) : Row{};  // loaded while the channel reads its epoch
    Channel channel(team);
    Packets packets(channel);
    bool ok = channel.await_slots();
    u64 word = 0;  // from the thread's rank: the rows that come
    if (warp == 0) {
        const Row row = row_to(args, wanted);
        const u64 sent = count_word(args, row);
        if (ok && channel.is_peer(rank)) packets.send_word(packets.outbox(rank), kCountPacket, sent);
        if (rank < team.size) spans.out[rank] = span_of(args, args.send, row);
        if (rank == team.rank) word = sent;
    }
    __syncthreads();
    Exchange exchange{channel, packets, spans, ways};
    if (ok) exchange.send();
    if (warp == 0) {
        const bool came = ok && (!channel.is_peer(rank) || packets.receive_word(rank, kCountPacket, word));
        const bool all = __all_sync(kWholeWarp, came);
        const Row row = row_from(args, all ? i64(word) : 0);
        if (rank < team.size) {
            spans.in[rank] = span_of(args, args.recv, row);
            received[rank] = i64(word);
        }
        if (rank == 0) all_came = all;
    }
    ways.share(spans);
    ok = all_came;
    if (ok && blockIdx.x == 0 && warp == last) {  // the first warps have packets to take
        const int source = int(threadIdx.x % 32);
        write_outputs(args, row_from(args, source < team.size ? received[source] : 0));
    }
    ok = ok && exchange.receive(channel.compare([](int) { return true; }));
    channel.leave(ok);
}
