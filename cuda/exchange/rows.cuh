// Alltoallv with counts on the device: where each source's rows belong, and the outputs for the caller.
//
// Lane r of a warp computes for rank r; sums over ranks are sums over lanes.
#pragma once
#include "protocol/lanes.cuh"
#include "protocol/vector.cuh"
#include "protocol/wait.cuh"

struct Row {  // the rows that a rank sends to, or gets from, another
    i64 count, displ, kept;  // kept: how many fit at the receiver
};

// Returns how many of `count` rows from `displ` on are before `end`.
__device__ i64 fitting(i64 count, i64 displ, i64 end) {
    return displ < 0 || displ >= end ? 0 : i64(smaller(count, end - displ));
}

// Returns the sum over the ranks before the lane's rank. All lanes of a warp; those without a rank pass 0.
__device__ __forceinline__ i64 sum_before(i64 mine) { return i64(sum_to_lane<kMaxRanks>(u64(mine)) - u64(mine)); }

// Returns where the rows of the lane's rank belong, from the word that this rank has sent. All lanes of a warp call
// this; those without a rank pass 0.
__device__ Row row_from(const AlltoallvArgs& args, i64 word) {
    const int rank = int(threadIdx.x % 32);
    const i64 before = sum_before(args.placement == kPacked ? word : 0);
    if (rank >= args.team.size) return Row{};
    if (args.placement == kSender) {
        const i64 count = word & 0xffffffff, displ = word >> 32 & 0xffffffff;
        return Row{count, rank * args.slot_rows + displ, fitting(count, displ, args.capacity)};
    }
    const i64 count = word;
    if (args.placement == kPlaced)
        return Row{count, args.recv_displs[rank], fitting(count, args.recv_displs[rank], args.capacity)};
    if (args.placement == kFixed)
        return Row{count, args.fixed[3][rank], i64(smaller(count, args.fixed[2][rank]))};
    if (args.placement == kSlots) return Row{count, rank * args.slot_rows, i64(smaller(count, args.capacity))};
    const i64 displ = i64(smaller(before, args.capacity));
    return Row{count, displ, i64(smaller(count, args.capacity - displ))};
}

// Writes the outputs for the caller; lane r has the rows of source r. All lanes of a warp.
__device__ void write_outputs(const AlltoallvArgs& args, const Row& row) {
    const int source = int(threadIdx.x % 32);
    const i64 total = sum_to_lane<kMaxRanks>(row.kept);
    if (source >= args.team.size) return;
    if (args.recv_counts) args.recv_counts[source] = row.kept;
    if (args.recv_displs && args.placement != kPlaced) args.recv_displs[source] = row.displ;
    if (args.status) args.status[source] = row.count - row.kept;
    if (row.kept < row.count && !args.drop)
        record_overflow(args.team, args.placement == kFixed ? kTruncated : kCut, source, row.count, row.kept);
    if (args.total && source == args.team.size - 1) *args.total = total;
}
