// What links between GPUs carry when a kernel only moves memory, without signals; links.py runs it.
#include "protocol/signal.cuh"

struct Moves {
    const char* from;  // one of both is a peer's memory
    char* to;
    u64 nbytes;
};

// A part of the memory for each block, whose threads stride through it, with kAtOnce packs each on the way.
template <int kAtOnce>
__global__ void __launch_bounds__(1024, 1) move(const Moves moves) {
    const u64 packs = moves.nbytes / sizeof(Pack), each = (packs + gridDim.x - 1) / gridDim.x;
    const u64 end = each * (blockIdx.x + 1) < packs ? each * (blockIdx.x + 1) : packs, stride = blockDim.x;
    const auto* from = reinterpret_cast<const Pack*>(moves.from);
    auto* to = reinterpret_cast<Pack*>(moves.to);
    for (u64 i = each * blockIdx.x + threadIdx.x; i < end; i += kAtOnce * stride) {
        Pack moved[kAtOnce];
#pragma unroll
        for (int u = 0; u < kAtOnce; ++u)
            if (i + u * stride < end) moved[u] = get_pack(from + i + u * stride);
#pragma unroll
        for (int u = 0; u < kAtOnce; ++u)
            if (i + u * stride < end) put_pack(to + i + u * stride, moved[u]);
    }
}
