// Arguments of operations whose blocks differ in length. Twin: pyncclx/collectives/arguments.py.
#pragma once
#include "protocol/layout.cuh"

// Gatherv, Scatterv, Allgatherv, Reduce_scatter. `nbytes` is the length of this rank's own block: for Gatherv in sendbuf, for
// Scatterv in recvbuf.
struct BlocksArgs : ReduceArgs {
    u64 nbytes_of[kMaxRanks], begin_of[kMaxRanks];  // each rank's block, in the buffer that has one for every rank
};
