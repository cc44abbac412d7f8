// The device API: partitioned messages. A part of pyncclx.cuh, which includes it.
//
// `partitions` is `request.pointer` of a request of `Psend_init` or `Precv_init`, which has been started on the kernel's
// stream. A kernel that sends waits for the receiver's start: so start what receives before. To MPI.PROC_NULL and from it
// the pointer is 0: then the functions do nothing, and return 1.
#pragma once

typedef u64 pyncclx_partitions;

// ---- pready: a partition has been written, and is sent ---------------------------------------------------
//
// Each partition once in a round. Releases what the threads that call it have written. What others wrote must come before,
// by a barrier of the block or of the grid. Returns 0 if there is no such partition, too.

PYNCCLX_API int pyncclx_pready_thread(pyncclx_partitions partitions, u32 partition) {
    return pyncclx::pready(partitions, partition, pyncclx::this_thread(), pyncclx::MeetThread());
}

PYNCCLX_API int pyncclx_pready_warp(pyncclx_partitions partitions, u32 partition) {
    return pyncclx::pready(partitions, partition, pyncclx::this_warp(), pyncclx::MeetWarp());
}

PYNCCLX_API int pyncclx_pready_block(pyncclx_partitions partitions, u32 partition) {
    return pyncclx::pready(partitions, partition, pyncclx::this_block(), pyncclx::MeetBlock());
}

// ---- parrived: a partition has come, and may be read -----------------------------------------------------

// 1 if it has come in this round. A thread acquires it.
PYNCCLX_API int pyncclx_parrived(pyncclx_partitions partitions, u32 partition) {
    if (partitions == 0) return 1;
    return pyncclx::is_received(partitions, partition) && has_arrived(pyncclx::partitions_at(partitions), partition);
}

// A thread waits for a partition, and acquires it; other threads of the block need a barrier with this thread afterwards.
PYNCCLX_API int pyncclx_await_partition(pyncclx_partitions partitions, u32 partition) {
    if (partitions == 0) return 1;
    return pyncclx::is_received(partitions, partition) && wait_for_partition(pyncclx::partitions_at(partitions), partition);
}

// The same by all threads of a block, which meet before and after. Acquires for all of them.
PYNCCLX_API int pyncclx_await_partition_block(pyncclx_partitions partitions, u32 partition) {
    __syncthreads();
    const bool ok = pyncclx::thread_number() != 0 || pyncclx_await_partition(partitions, partition);
    return __syncthreads_or(!ok) == 0;
}
