// Derived datatypes: `pack` gathers the blocks of a datatype into contiguous memory, `unpack` scatters them back.
//
// The host flattens a datatype to nests of loops over equal blocks (pyncclx/derived/nest.py, batches.py). A block is
// contiguous, or has a table of its contiguous runs.
//   1. The work of all nests is one row of tiles, so that one launch packs for all peers; blocks take tiles in turn.
//   2. Threads go over consecutive words in packed order, as wide as block, strides and addresses allow.
//   3. A thread finds each word's place by division: for 16 bytes that costs fewer instructions than its two trips to memory.
// Launch: any number of blocks of up to kPackThreads threads; they wait for nothing. Thresholds: not measured.
#include "protocol/vector.cuh"

constexpr int kMostNests = 16;
constexpr int kMostDims = 6;
constexpr int kPackThreads = 256;  // most threads of a block
constexpr u32 kWordsAtOnce = 4;    // words that a thread loads before it stores, and words of a tile for each thread

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

template <bool kPacks, class Word, class Index>
__device__ __forceinline__ void move_words(const DatatypeArgs& args, const Nest& nest, u64 tile) {
    const u64 first = (tile - nest.first_tile) * blockDim.x * kWordsAtOnce + threadIdx.x;
    Word words[kWordsAtOnce];
    char* to[kWordsAtOnce];
#pragma unroll
    for (u32 w = 0; w < kWordsAtOnce; ++w) {
        const u64 i = first + w * blockDim.x;
        if (i >= nest.words) break;
        const Where where = locate<Index>(nest, Index(i));
        char *memory = args.memory + where.memory, *packed = args.packed + where.packed;
        words[w] = *reinterpret_cast<const Word*>(kPacks ? memory : packed);
        to[w] = kPacks ? packed : memory;
    }
#pragma unroll
    for (u32 w = 0; w < kWordsAtOnce; ++w)
        if (first + w * blockDim.x < nest.words) *reinterpret_cast<Word*>(to[w]) = words[w];
}

template <bool kPacks, class Word>
__device__ __forceinline__ void move_tile(const DatatypeArgs& args, const Nest& nest, u64 tile) {
    if (nest.words <= 0xffffffffu) move_words<kPacks, Word, u32>(args, nest, tile);  // division is cheaper
    else move_words<kPacks, Word, u64>(args, nest, tile);
}

template <bool kPacks>
__device__ __forceinline__ void move(const DatatypeArgs& args) {
    u32 n = 0;
    for (u64 tile = blockIdx.x; tile < args.tiles; tile += gridDim.x) {
        while (n + 1 < args.nests && args.nest[n + 1].first_tile <= tile) ++n;
        const Nest& nest = args.nest[n];
        if (nest.width == 16) move_tile<kPacks, Pack>(args, nest, tile);
        else if (nest.width == 8) move_tile<kPacks, u64>(args, nest, tile);
        else if (nest.width == 4) move_tile<kPacks, u32>(args, nest, tile);
        else if (nest.width == 2) move_tile<kPacks, unsigned short>(args, nest, tile);
        else move_tile<kPacks, unsigned char>(args, nest, tile);
    }
}

template <class = void>
__global__ void __launch_bounds__(kPackThreads) pack(const __grid_constant__ DatatypeArgs args) { move<true>(args); }

template <class = void>
__global__ void __launch_bounds__(kPackThreads) unpack(const __grid_constant__ DatatypeArgs args) { move<false>(args); }
