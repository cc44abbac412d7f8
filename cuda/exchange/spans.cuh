// The parts of messages (spans) that a block moves between this rank and every other.
#pragma once
#include "protocol/layout.cuh"
#include "protocol/vector.cuh"

struct Span {
    char* address;
    u64 nbytes;  // to travel
    u64 kept;    // bytes that fit the receiver's buffer, which stores them
};

struct Spans {  // the spans of one block, in shared memory; [rank]
    Span out[kMaxRanks], in[kMaxRanks];
    u64 stored[kMaxRanks], taken[kMaxRanks];  // bytes that go as chunks
    char* place[kMaxRanks];  // in the peer's memory, if the span is stored straight there; else null

    // Whether this rank has nothing to move. Then it waits for nothing that would show that a peer has.
    __device__ bool are_empty(int size) const {
        for (int rank = 0; rank < size; ++rank)
            if (out[rank].nbytes > 0 || in[rank].nbytes > 0) return false;
        return true;
    }
};

// This block's part of a message, as a span.
__device__ __forceinline__ Span part_of(const char* message, u64 nbytes) {
    const Part part(nbytes, gridDim.x, blockIdx.x);
    return Span{const_cast<char*>(message) + part.begin, part.nbytes, part.nbytes};
}
