// Kernels of a program that send and receive partitions as they are made.
#include "pyncclx.cuh"

// Each block makes some partitions of `count` numbers, in another order in each round, and sends each when it is made.
extern "C" __global__ void produce(
    pyncclx_partitions send, long long* x, long long count, int partitions, long long first, int who, int* failed) {
    for (int i = blockIdx.x; i < partitions; i += gridDim.x) {
        const int partition = partitions - 1 - i;
        long long* mine = x + partition * count;
        const int warps = (blockDim.x + 31) / 32, warp = threadIdx.x / 32;
        if (who == 2) {  // the block
            for (long long j = threadIdx.x; j < count; j += blockDim.x) mine[j] = first + partition * count + j;
            if (!pyncclx_pready_block(send, partition)) *failed = 1;
            continue;
        }
        if (warp != i % warps) continue;
        const int lanes = min(32, int(blockDim.x) - 32 * warp), lane = threadIdx.x % 32;
        if (who == 0 && lane != 0) continue;
        for (long long j = who == 0 ? 0 : lane; j < count; j += who == 0 ? 1 : lanes) mine[j] = first + partition * count + j;
        if (who == 0 ? !pyncclx_pready_thread(send, partition) : !pyncclx_pready_warp(send, partition)) *failed = 1;
    }
}

// Each block awaits some partitions of what has come, and copies each.
extern "C" __global__ void consume(
    pyncclx_partitions receive, const long long* y, long long* taken, long long count, int partitions, int how, int* failed) {
    for (int partition = blockIdx.x; partition < partitions; partition += gridDim.x) {
        bool ok = true;
        if (how == 0) ok = pyncclx_await_partition_block(receive, partition);
        else if (threadIdx.x == 0) ok = pyncclx_await_partition(receive, partition) && pyncclx_parrived(receive, partition);
        __syncthreads();
        if (!ok) *failed = 1;
        for (long long j = threadIdx.x; j < count; j += blockDim.x) taken[partition * count + j] = y[partition * count + j];
    }
}

// What is no partition of this end.
extern "C" __global__ void misuse(pyncclx_partitions send, pyncclx_partitions receive, int partitions, int* results) {
    results[0] = pyncclx_pready_block(send, partitions);
    results[1] = pyncclx_pready_block(receive, 0);
    results[2] = pyncclx_await_partition_block(receive, partitions);
    results[3] = pyncclx_await_partition_block(send, 0);
    results[4] = pyncclx_parrived(send, 0);
    results[5] = pyncclx_parrived(receive, 0);
}
