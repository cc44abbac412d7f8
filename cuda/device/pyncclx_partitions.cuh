// The device API: partitioned messages. A part of pyncclx.cuh, which includes it.
//
// `partitions` is `request.pointer` of a request from `Psend_init` or `Precv_init` that has been started on the
// kernel's stream. A kernel that sends waits for the receiver's start, so start receives first. For messages to or from
// MPI.PROC_NULL the pointer is 0: then the functions do nothing, and return 1.
#pragma once

typedef u64 pyncclx_partitions;

// ---- pready: send a partition that has been written ------------------------------------------------------
//
// Send each partition once in a round. Releases what the calling threads have written. What other threads wrote must be
// ordered before, by a barrier of the block or of the grid. Also returns 0 if there is no such partition.

PYNCCLX_API int pyncclx_pready_thread(pyncclx_partitions partitions, u32 partition) {
    return pyncclx::pready(partitions, partition, pyncclx::this_thread(), pyncclx::MeetThread());
}

PYNCCLX_API int pyncclx_pready_warp(pyncclx_partitions partitions, u32 partition) {
    return pyncclx::pready(partitions, partition, pyncclx::this_warp(), pyncclx::MeetWarp());
}

PYNCCLX_API int pyncclx_pready_block(pyncclx_partitions partitions, u32 partition) {
    return pyncclx::pready(partitions, partition, pyncclx::this_block(), pyncclx::MeetBlock());
}

// ---- parrived: whether a partition has arrived and may be read -------------------------------------------

// Returns 1 if it has arrived in this round; the calling thread then acquires it.
PYNCCLX_API int pyncclx_parrived(pyncclx_partitions partitions, u32 partition) {
    if (partitions == 0) return 1;
    return pyncclx::is_received(partitions, partition) && has_arrived(pyncclx::partitions_at(partitions), partition);
}

// A thread waits for a partition, and acquires it; other threads of the block then need a barrier with this thread.
PYNCCLX_API int pyncclx_await_partition(pyncclx_partitions partitions, u32 partition) {
    if (partitions == 0) return 1;
    return pyncclx::is_received(partitions, partition) && wait_for_partition(pyncclx::partitions_at(partitions), partition);
}

// All threads of a block wait for a partition; they meet before and after. Acquires for all of them.
PYNCCLX_API int pyncclx_await_partition_block(pyncclx_partitions partitions, u32 partition) {
    __syncthreads();
    const bool ok = pyncclx::thread_number() != 0 || pyncclx_await_partition(partitions, partition);
    return __syncthreads_or(!ok) == 0;
}
