// Partitioned messages: what the host launches for Start, Pready and Wait. A program's own kernels may send, too.
#include "device/partitions.cuh"

constexpr u32 kMostListed = 512;  // partitions of one launch, if they are not a range

constexpr u32 kMostRounds = 500;   // rounds that one launch begins: a kernel's parameters are at most 4 KB

struct BeginRoundsArgs {
    u64 count;
    u32* epochs[kMostRounds];
};

struct PartitionsArgs {
    Partitions partitions;
};

struct SendPartitionsArgs {
    Partitions partitions;
    u32 count, chunks;  // partitions, and chunks of each; each block sends some
    u32 first, listed;  // listed = 0: the partitions from `first` on
    u32 numbers[kMostListed];
};

// One block begins rounds. A receiving end thereby gives its buffer to the sender, after the stream's earlier work.
template <class = void>
__global__ void __launch_bounds__(kMaxThreads, 1) begin_rounds(const __grid_constant__ BeginRoundsArgs args) {
    for (u32 i = threadIdx.x; i < args.count; i += blockDim.x) st_release_sys(args.epochs[i], *args.epochs[i] + 1);
}

template <class = void>
__global__ void __launch_bounds__(kMaxThreads, 1) send_partitions(const __grid_constant__ SendPartitionsArgs args) {
    const auto meet = [](bool ok) { return __syncthreads_or(!ok) == 0; };
    const Partitions& p = args.partitions;
    for (u32 item = blockIdx.x; item < args.count * args.chunks; item += gridDim.x) {
        const u32 index = item / args.chunks, partition = args.listed != 0 ? args.numbers[index] : args.first + index;
        if (!send_partition(p, partition, item % args.chunks, args.chunks, threadIdx.x, blockDim.x, meet)) return;
    }
}

// One block waits until all parts have been sent, or all parts have arrived.
template <class = void>
__global__ void __launch_bounds__(kMaxThreads, 1) await_partitions(const __grid_constant__ PartitionsArgs args) {
    const Partitions& p = args.partitions;
    const u32 round = *p.epoch;
    if (p.finished != nullptr) {
        if (threadIdx.x == 0) wait_for_round(p, p.finished, round, round * p.receives);
        return;
    }
    for (u32 i = threadIdx.x; i < p.receives; i += blockDim.x)
        if (!wait_for_round(p, &p.arrived[i], round, round)) return;
}
