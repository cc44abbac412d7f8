// Windows: memory of every rank that all ranks have mapped, so that a kernel reads and writes it in place.
//
// One word of a packet describes where a rank's buffer is: the window's number, and the offset in the rank's part of
// it. From these the peer computes the address at which it has mapped that part. 0 means that the buffer is in no
// window. So both ranks choose the same transport without their hosts.
#pragma once
#include "protocol/layout.cuh"

constexpr int kOffsetBits = 48;  // more than a GPU's memory needs; 16 bits are left for the window's number

__device__ __forceinline__ u64 pack_place(const Place& place, const char* address) {
    return place.window == 0 ? 0 : place.window << kOffsetBits | u64(address - place.begin);
}

// The address at which this process has mapped a place of `rank`; null if it is in no window.
__device__ __forceinline__ char* unpack_place(const Team& team, int rank, u64 word) {
    if (word == 0) return nullptr;
    return team.windows[((word >> kOffsetBits) - 1) * kMaxRanks + rank] + (word & ((1ull << kOffsetBits) - 1));
}
