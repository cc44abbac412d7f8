// Derived datatypes: `pack` gathers the blocks of a datatype into contiguous memory, `unpack` scatters them back.
//
// Either memory may be a peer's, as mapped here: stores of an ended kernel are there when its stream's host continues, and
// for a peer that sees what a later kernel of the stream releases.
// One launch packs for all peers (nests.cuh). Words are as wide as block, strides and addresses allow.
// Launch: any number of blocks of up to kPackThreads threads; they wait for nothing. Thresholds: not measured.
#include "derived/nests.cuh"

constexpr int kPackThreads = 256;  // most threads of a block

template <bool kPacks, class Word, class Index>
__device__ __forceinline__ void move_words(const DatatypeArgs& args, const Nest& nest, u64 tile) {
    const u64 first = first_word(nest, tile);
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
    for_each_tile(args, [&](const Nest& nest, u64 tile) {
        if (nest.width == 16) move_tile<kPacks, Pack>(args, nest, tile);
        else if (nest.width == 8) move_tile<kPacks, u64>(args, nest, tile);
        else if (nest.width == 4) move_tile<kPacks, u32>(args, nest, tile);
        else if (nest.width == 2) move_tile<kPacks, unsigned short>(args, nest, tile);
        else move_tile<kPacks, unsigned char>(args, nest, tile);
    });
}

template <class = void>
__global__ void __launch_bounds__(kPackThreads) pack(const __grid_constant__ DatatypeArgs args) { move<true>(args); }

template <class = void>
__global__ void __launch_bounds__(kPackThreads) unpack(const __grid_constant__ DatatypeArgs args) { move<false>(args); }
