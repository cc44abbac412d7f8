// What test_emulator.py runs.
#include "protocol/signal.cuh"
struct Args { u64* out; u64* in; u64 value; };
constexpr u32 kAll = 0xffffffffu;

__global__ void indices(const __grid_constant__ Args a) {
    u64* mine = a.out + (blockIdx.x * blockDim.x + threadIdx.x) * 4;
    mine[0] = blockIdx.x; mine[1] = threadIdx.x; mine[2] = gridDim.x; mine[3] = blockDim.x + threadIdx.y;
}

__global__ void reverse(const __grid_constant__ Args a) {
    __shared__ u64 words[64];
    for (u32 round = 0; round < 3; ++round) {
        words[threadIdx.x] = threadIdx.x + round;
        __syncthreads();
        a.out[blockIdx.x * 64 + threadIdx.x] = words[63 - threadIdx.x];
        __syncthreads();
    }
}

// A quarter of the threads leaves first; a barrier does not wait for those.
__global__ void votes(const __grid_constant__ Args a) {
    if (threadIdx.x >= 48) return;
    a.out[threadIdx.x * 4 + 0] = __syncthreads_count(threadIdx.x % 3 == 0);
    a.out[threadIdx.x * 4 + 1] = __syncthreads_or(threadIdx.x == 47);
    a.out[threadIdx.x * 4 + 2] = __syncthreads_and(threadIdx.x < 47);
    a.out[threadIdx.x * 4 + 3] = __syncthreads_and(true);
}

__global__ void shuffles(const __grid_constant__ Args a) {
    const int lane = threadIdx.x % 32;
    u64* mine = a.out + threadIdx.x * 8;
    mine[7] = __activemask();
    mine[0] = __shfl_sync(kAll, u64(lane) << 40, 5);
    mine[1] = __shfl_up_sync(kAll, lane, 3, 16);
    mine[2] = __shfl_down_sync(kAll, double(lane), 1);
    mine[3] = __shfl_xor_sync(kAll, (unsigned char)lane, 7);
    mine[4] = __ballot_sync(kAll, lane % 2);
    mine[5] = __any_sync(kAll, lane == 9) * 2 + __all_sync(kAll, lane < 31);
    mine[6] = lane;  // two groups of lanes, one of which meets more often
    const u32 group = lane < 8 ? 0xffu : ~0xffu;
    for (int i = 0; i < (lane < 8 ? 9 : 2); ++i) mine[6] = __shfl_xor_sync(group, u32(mine[6]), 1);
}

__global__ void matches(const __grid_constant__ Args a) {
    const u32 lane = threadIdx.x % 32;
    a.out[threadIdx.x] = __match_any_sync(kAll, int(lane % 5) - 1);
}

__global__ void dynamic(const __grid_constant__ Args a) {
    u64* words = dynamic_shared<u64>();
    words[threadIdx.x] = threadIdx.x;
    __syncthreads();
    a.out[threadIdx.x] = words[threadIdx.x ^ 1] + (u64(words) % 16 != 0);
}

__global__ void packs(const __grid_constant__ Args a) {
    Pack* pack = reinterpret_cast<Pack*>(a.out) + threadIdx.x * 2;
    put_pack(pack, Pack{threadIdx.x, 1});
    st_packet_sys(pack + 1, get_pack(pack));
    const Pack back = ld_packet_sys(pack + 1);
    put_pack(pack, Pack{back.x + 100, back.y});
}

__global__ void misaligned(const __grid_constant__ Args a) { get_pack(reinterpret_cast<Pack*>(a.out + 1)); }

__global__ void atomics(const __grid_constant__ Args a) {
    const u64 i = blockIdx.x * blockDim.x + threadIdx.x;
    atomicAdd(a.out, 1);
    atomicAdd(reinterpret_cast<float*>(a.out + 1), 0.5f);
    atomicMax_system(reinterpret_cast<int*>(a.out + 2), int(i) - 1000);
    if (atomicCAS(a.out + 3, 0, i + 1) == 0) atomicAdd(a.out + 4, 1);
    if (atomic_cas_gpu(reinterpret_cast<u32*>(a.out + 5), 0, 7) == 0) atomicExch(a.out + 6, 8);
}

__global__ void clocks(const __grid_constant__ Args a) {
    a.out[0] = clock_ns();
    while (clock_ns() < a.out[0] + 1000) spin_hint();
    a.out[1] = clock_ns();
}

template <bool kHint>
__global__ void chase(const __grid_constant__ Args a) {  // each thread of each block waits for the one before
    const u64 i = blockIdx.x * blockDim.x + threadIdx.x;
    while (ld_acquire_sys(a.out) != i) if (kHint) spin_hint();
    st_release_sys(a.out, i + 1);
}

__global__ void stuck(const __grid_constant__ Args a) {
    if (threadIdx.x == 0) while (ld_acquire_sys(a.out) == 0) spin_hint();
    __syncthreads();
}

__global__ void deadlock(const __grid_constant__ Args) {
    if (threadIdx.x == 3) __syncthreads(); else __syncwarp();
    __syncwarp();
}

__global__ void order(const __grid_constant__ Args a) {
    __shared__ u64 next;
    if (threadIdx.x == 0) next = 0;
    for (u32 round = 0; round < 4; ++round) {
        __syncthreads();
        a.out[blockIdx.x * 256 + atomicAdd(&next, 1)] = threadIdx.x;
    }
}

// Rank 0 puts and signals, rank 1 waits and reads. Only two ways order all puts before the signal. Rank 0 begins when rank 1
// runs: what is delayed has long been written when a rank comes late, and no way would show anything.
enum Way { kByBlock, kByWarp, kRelaxed, kNoBarrier };
template <Way kWay>
__global__ void send(const __grid_constant__ Args a) {
    while (ld_acquire_sys(a.in + 1) != a.value) spin_hint();
    put_pack(reinterpret_cast<Pack*>(a.in + 2) + threadIdx.x, Pack{a.value, a.value});
    if (kWay == kByWarp) __syncwarp();
    if (kWay == kByBlock || kWay == kRelaxed) __syncthreads();
    if (threadIdx.x != 0) return;
    if (kWay == kRelaxed) st_relaxed_sys(a.in, a.value); else st_release_sys(a.in, a.value);
}
__global__ void receive(const __grid_constant__ Args a) {
    if (threadIdx.x == 0) st_relaxed_sys(a.in + 1, a.value);
    while (ld_acquire_sys(a.in) != a.value) spin_hint();
    const Pack pack = get_pack(reinterpret_cast<Pack*>(a.in + 2) + threadIdx.x);
    if (pack.x != a.value || pack.y != a.value) atomicAdd(a.out, 1);
}
