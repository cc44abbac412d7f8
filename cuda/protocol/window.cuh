// Windows: memory of every rank that all ranks have mapped, so that a kernel reads and writes it where it lies.
//
// A rank tells a peer where one of its buffers lies in one word of a packet: the window's number and the offset in
// this rank's part of it. The peer knows where it has mapped that part. 0 says that the buffer is in no window, so
// that both agree on the way of the data without asking the hosts.
#pragma once
#include "protocol/layout.cuh"

constexpr int kOffsetBits = 48;  // more than a GPU has, which leaves room for 65535 windows

__device__ __forceinline__ u64 pack_place(const Place& place, const char* address) {
    return place.window == 0 ? 0 : place.window << kOffsetBits | u64(address - place.begin);
}

// The same memory of `rank` as mapped here; null if it is in no window.
__device__ __forceinline__ char* unpack_place(const Team& team, int rank, u64 word) {
    if (word == 0) return nullptr;
    return team.windows[((word >> kOffsetBits) - 1) * kMaxRanks + rank] + (word & ((1ull << kOffsetBits) - 1));
}
