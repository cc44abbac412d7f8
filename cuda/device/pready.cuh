// Partitions that threads, warps and blocks of a program's own kernels send and await, behind pyncclx_partitions.cuh.
#pragma once
#include "device/moves.cuh"
#include "device/partitions.cuh"

struct MeetThread {
    __device__ __forceinline__ bool operator()(bool ok) const { return ok; }
};

struct MeetWarp {
    __device__ __forceinline__ bool operator()(bool ok) const {
        const bool all = __all_sync(lanes_of_warp(), ok) != 0;
        meet_warp();  // a vote orders nothing
        return all;
    }
};

struct MeetBlock {
    __device__ __forceinline__ bool operator()(bool ok) const { return __syncthreads_or(!ok) == 0; }
};

__device__ __forceinline__ const Partitions& partitions_at(u64 handle) {
    return *reinterpret_cast<const Partitions*>(handle);
}

// If the handle is null, as for a message to MPI.PROC_NULL, there is nothing to do. Only partitions of the sender's end
// can be sent.
template <class Meet>
__device__ __forceinline__ int pready(u64 handle, u32 partition, Members who, Meet meet) {
    if (handle == 0) return 1;
    const Partitions& p = partitions_at(handle);
    return p.finished != nullptr && partition < p.sends &&
           send_partition(p, partition, 0, 1, who.member, who.members, meet);
}

__device__ __forceinline__ bool is_received(u64 handle, u32 partition) {
    const Partitions& p = partitions_at(handle);
    return p.finished == nullptr && partition < p.receives;
}
