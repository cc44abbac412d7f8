// What the lanes of a warp have together.
#pragma once
#include "protocol/signal.cuh"

constexpr u32 kWholeWarp = 0xffffffffu;

// What the lanes up to this one have. All lanes of a warp; with fewer `kLanes`, those past them have nothing.
template <int kLanes = 32, class T>
__device__ __forceinline__ T sum_to_lane(T value) {
    for (int delta = 1; delta < kLanes; delta *= 2) {
        const T before = __shfl_up_sync(kWholeWarp, value, delta);
        if (int(threadIdx.x % 32) >= delta) value += before;
    }
    return value;
}
