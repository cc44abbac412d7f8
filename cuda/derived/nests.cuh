// Derived datatypes: where their words lie in memory and in packed memory.
//
// The host flattens a datatype to nests of loops over equal blocks (pyncclx/derived/nest.py, batches.py). A block is
// contiguous, or has a table of its contiguous runs.
//   1. The work of all nests is one row of tiles; blocks of the kernel take tiles in turn.
//   2. Threads go over consecutive words in packed order.
//   3. A thread finds each word's place by division: for 16 bytes that costs fewer instructions than its two trips to memory.
#pragma once
#include "protocol/vector.cuh"

constexpr int kMostNests = 16;
constexpr int kMostDims = 6;
constexpr u32 kWordsAtOnce = 4;  // words of a tile for each thread

struct Dim {
    u64 count;
    i64 stride, packed_stride;
};

struct Run {
    u64 start;   // in the packed block
    i64 offset;  // in memory
};

struct Nest {
    i64 offset;        // offset of the first block in memory
    u64 start;         // offset of the first block in packed memory
    const Run* runs;   // the runs of each block; null: it is contiguous
    u64 first_tile, words, block_words;  // words of all blocks, of one block
    u32 run_count, dims, width, unused;
    Dim dim[kMostDims];  // innermost first
};

struct DatatypeArgs {
    char* memory;
    char* packed;
    u64 tiles;
    u64 nests;
    Nest nest[kMostNests];  // in the order of their tiles
};

struct Where {
    i64 memory;
    u64 packed;
};

// Where byte `begin` of a packed block lies in memory, from the block's beginning.
__device__ __forceinline__ i64 find_in_runs(const Nest& nest, u64 begin) {
    u32 low = 0, high = nest.run_count;
    while (high - low > 1) {
        const u32 middle = (low + high) / 2;
        if (nest.runs[middle].start <= begin) low = middle;
        else high = middle;
    }
    return nest.runs[low].offset + i64(begin - nest.runs[low].start);
}

template <class Index>
__device__ __forceinline__ Where locate(const Nest& nest, Index word) {
    Index outer = nest.dims == 0 ? 0 : word / Index(nest.block_words);
    const u64 begin = u64(word - outer * Index(nest.block_words)) * nest.width;
    Where where{nest.offset + (nest.runs ? find_in_runs(nest, begin) : i64(begin)), nest.start + begin};
#pragma unroll 1  // unrolled there would be ten times the code, for kMostDims loops
    for (u32 d = 0; d < nest.dims; ++d) {
        const Dim& dim = nest.dim[d];
        const Index next = d + 1 < nest.dims ? outer / Index(dim.count) : 0;
        const i64 i = i64(outer - next * Index(dim.count));
        where.memory += i * dim.stride;
        where.packed += u64(i * dim.packed_stride);
        outer = next;
    }
    return where;
}

// Calls visit(nest, tile) for each tile of this block of the kernel; the nest has the tile.
template <class Visit>
__device__ __forceinline__ void for_each_tile(const DatatypeArgs& args, Visit visit) {
    u32 n = 0;
    for (u64 tile = blockIdx.x; tile < args.tiles; tile += gridDim.x) {
        while (n + 1 < args.nests && args.nest[n + 1].first_tile <= tile) ++n;
        visit(args.nest[n], tile);
    }
}

// The first word of this thread in a tile; the next ones are blockDim.x apart.
__device__ __forceinline__ u64 first_word(const Nest& nest, u64 tile) {
    return (tile - nest.first_tile) * blockDim.x * kWordsAtOnce + threadIdx.x;
}
