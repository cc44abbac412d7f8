// Alltoallv with counts on the device: where the rows belong that each source has announced, and what the caller is told.
#pragma once
#include "vector.cuh"
#include "wait.cuh"

struct Row {  // what a rank sends to, or gets from, another; in rows
    i64 count, displ, kept;
};

// So many of `count` rows that begin at `displ` lie before `end`.
__device__ i64 fitting(i64 count, i64 displ, i64 end) {
    return displ < 0 || displ >= end ? 0 : i64(smaller(count, end - displ));
}

// Where the rows belong that `rank` has announced by `received[rank]`.
__device__ Row row_from(const AlltoallvArgs& args, const i64* received, int rank) {
    if (args.placement == kSender) {
        const i64 count = received[rank] & 0xffffffff, displ = received[rank] >> 32 & 0xffffffff;
        return Row{count, rank * args.slot_rows + displ, fitting(count, displ, args.capacity)};
    }
    const i64 count = received[rank];
    if (args.placement == kPlaced)
        return Row{count, args.recv_displs[rank], fitting(count, args.recv_displs[rank], args.capacity)};
    if (args.placement == kFixed)
        return Row{count, args.fixed[3][rank], i64(smaller(count, args.fixed[2][rank]))};
    if (args.placement == kSlots) return Row{count, rank * args.slot_rows, i64(smaller(count, args.capacity))};
    i64 displ = 0;
    for (int before = 0; before < rank; ++before) displ += smaller(received[before], args.capacity - displ);
    return Row{count, displ, i64(smaller(count, args.capacity - displ))};
}

// What the caller is told of `source`, whose rows are `row`. `kept`: rows stored, of each source.
__device__ void write_outputs(const AlltoallvArgs& args, const Row& row, const i64* kept, int source) {
    if (args.recv_counts) args.recv_counts[source] = row.kept;
    if (args.recv_displs && args.placement != kPlaced) args.recv_displs[source] = row.displ;
    if (args.status) args.status[source] = row.count - row.kept;
    if (row.kept < row.count && !args.drop)
        record_overflow(args.team, args.placement == kFixed ? kTruncated : kCut, source, row.count, row.kept);
    if (args.total && source == 0) {
        i64 total = 0;
        for (int rank = 0; rank < args.team.size; ++rank) total += kept[rank];
        *args.total = total;
    }
}
