// Sums over the lanes of a warp.
#pragma once
#include "protocol/signal.cuh"

constexpr u32 kWholeWarp = 0xffffffffu;

// The sum of `value` over the lanes up to this one. All lanes of a warp call it. With fewer `kLanes`, the lanes past them
// must pass 0.
template <int kLanes = 32, class T>
__device__ __forceinline__ T sum_to_lane(T value) {
    for (int delta = 1; delta < kLanes; delta *= 2) {
        const T before = __shfl_up_sync(kWholeWarp, value, delta);
        if (int(threadIdx.x % 32) >= delta) value += before;
    }
    return value;
}
