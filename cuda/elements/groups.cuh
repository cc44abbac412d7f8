// Folds of elements that do not divide a pack: records of 12, 24, 32, 40 … bytes.
//
// A *group* is the shortest run of packs with whole elements: 48 bytes for 12 or 24. Parts, shards and tiles are cut into
// whole groups.
//   1. A thread folds a group. Neighbouring threads fold neighbouring groups, so their stores would have gaps, which are slow
//      over a link.
//   2. The results pass through shared memory; __syncwarp orders the two steps.
//   3. The warp stores them pack by pack.
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

// The fold over all ranks of the group that begins with pack `first`. The packs of kRanks ranks are loaded together.
template <class T, class Op, class Load>
__device__ __forceinline__ void fold_group(
    int size, u64 first, u64 packs, Load load, Pack (&result)[kGroupPacks<T>]) {
    constexpr u32 kPacks = kGroupPacks<T>;
    constexpr int kRanks = kPacks <= 3 ? 2 : 1;  // as the registers allow; not measured
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
constexpr u32 kFoldingLanes = kGroupPacks<T> <= 4 ? 32 : 128 / kGroupPacks<T>;  // those that fold; others only store

// The warp's shared memory for results, from groups to packs.
template <class T>
__device__ __forceinline__ Pack* group_stage() {
    __shared__ Pack stages[kMaxThreads / 32][kFoldingLanes<T> * kGroupPacks<T>];
    return stages[threadIdx.x / 32];
}

// Whole warps, `members` threads, fold `packs` packs: load(rank, i) returns pack i of a rank, keep(i, pack) stores pack i of
// the result. A warp may store to where it has loaded from.
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
