// Arguments of operations with a block of another length for each rank.
#pragma once
#include "protocol/layout.cuh"

// Gatherv, Scatterv, Allgatherv, Reduce_scatter. `nbytes` is that of the one block that is not described by the rows:
// for Gatherv this rank's in sendbuf, for Scatterv in recvbuf.
struct BlocksArgs : ReduceArgs {
    u64 nbytes_of[kMaxRanks], begin_of[kMaxRanks];  // each rank's block, in the buffer that has one for every rank
};
