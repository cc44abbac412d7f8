// Folding elements that do not divide a pack: records of 12, 24, 32, 40 … bytes.
//
// A *group* is the shortest run of packs that holds whole elements: 48 bytes for 12 or 24. Parts, shards and tiles are
// cut into whole groups; one thread folds a group. Neighbouring threads fold neighbouring groups, so that what a warp
// would store has gaps, which a link between GPUs pays for: it therefore passes through shared memory, and leaves pack by
// pack.
#pragma once
#include "elements/reduce_ops.cuh"
#include "protocol/vector.cuh"

__device__ constexpr u32 greatest_common_divisor(u32 a, u32 b) { return b == 0 ? a : greatest_common_divisor(b, a % b); }

template <class T>
constexpr u32 kGroupPacks = sizeof(T) / greatest_common_divisor(kPackNbytes, sizeof(T));  // 1 where it divides a pack

template <class T>
constexpr u32 kGroupNbytes = kGroupPacks<T> * kPackNbytes;

__device__ __forceinline__ u64 groups_in(u64 nbytes, u32 group_nbytes) {
    return (nbytes + group_nbytes - 1) / group_nbytes;
}

// The elements of one group, folded over the ranks one after the other.
template <class T, class Op>
struct GroupFold {
    static constexpr u32 kPacks = kGroupPacks<T>, kNbytes = kGroupNbytes<T>, kElements = kNbytes / sizeof(T);
    T folded[kElements];

    __device__ void add(int rank, const Pack (&packs)[kPacks]) {
        T elements[kElements];
        memcpy(elements, packs, kNbytes);
#pragma unroll
        for (u32 i = 0; i < kElements; ++i)
            folded[i] = rank == 0 ? elements[i] : Op::combine(folded[i], elements[i]);
    }

    __device__ void result(int size, Pack (&packs)[kPacks]) const {
        T elements[kElements];
#pragma unroll
        for (u32 i = 0; i < kElements; ++i) elements[i] = Op::finish(folded[i], size);
        memcpy(packs, elements, kNbytes);
    }
};

// One group, which begins with pack `first`, folded over all ranks. The packs of some ranks are on their way together.
template <class T, class Op, class Load>
__device__ __forceinline__ void fold_group(
    int size, u64 first, u64 packs, Load load, Pack (&result)[kGroupPacks<T>]) {
    constexpr u32 kPacks = kGroupPacks<T>;
    constexpr int kRanks = kPacks <= 3 ? 2 : 1;  // what fits the registers
    GroupFold<T, Op> fold;
#pragma unroll 1
    for (int rank = 0; rank < size; rank += kRanks) {
        Pack loaded[kRanks][kPacks];
#pragma unroll
        for (int r = 0; r < kRanks; ++r)
#pragma unroll
            for (u32 p = 0; p < kPacks; ++p)
                loaded[r][p] = rank + r < size && first + p < packs ? load(rank + r, first + p) : Pack{0, 0};
#pragma unroll
        for (int r = 0; r < kRanks; ++r)
            if (rank + r < size) fold.add(rank + r, loaded[r]);
    }
    fold.result(size, result);
}

template <class T>
constexpr u32 kFoldingLanes = kGroupPacks<T> <= 4 ? 32 : 128 / kGroupPacks<T>;  // of a warp; the others only store

// The shared memory in which a warp turns groups into packs.
template <class T>
__device__ __forceinline__ Pack* group_stage() {
    __shared__ Pack stages[kMaxThreads / 32][kFoldingLanes<T> * kGroupPacks<T>];
    return stages[threadIdx.x / 32];
}

// Whole warps, `members` threads, fold `packs` packs: pack i of a rank is load(rank, i), of the result keep(i, pack).
// What a warp stores by `keep` may be where it has loaded from.
template <class T, class Op, class Load, class Keep>
__device__ __forceinline__ void fold_groups(u32 member, u32 members, u64 packs, int size, Load load, Keep keep) {
    constexpr u32 kPacks = kGroupPacks<T>, kLanes = kFoldingLanes<T>;
    Pack* const stage = group_stage<T>();
    const u32 lane = member % 32;
#pragma unroll 1
    for (u64 begin = member / 32 * (kLanes * kPacks); begin < packs; begin += members / 32 * (kLanes * kPacks)) {
        if (lane < kLanes && begin + lane * kPacks < packs) {
            Pack result[kPacks];
            fold_group<T, Op>(size, begin + lane * kPacks, packs, load, result);
#pragma unroll
            for (u32 p = 0; p < kPacks; ++p) stage[lane * kPacks + p] = result[p];
        }
        __syncwarp();
        for (u32 i = lane; i < kLanes * kPacks && begin + i < packs; i += 32) keep(begin + i, stage[i]);
        __syncwarp();
    }
}
