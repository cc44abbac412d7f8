// Fold of vectors in this rank's own memory, in their order. They are contributions of nodes, which an engine has moved
// here.
//
// Vector k begins `stride` bytes after vector k - 1; that of `own_index` is elsewhere, at `own`. The result may replace one
// of them: a thread reads all packs before it stores theirs. Operators finish the value of `size` ranks, which may be more
// than there are vectors (Avg).
// Launch: any number of blocks of whole warps; they wait for nothing.
#include "reduction/reduce.cuh"

struct FoldArgs {
    const char* vectors;
    const char* own;
    char* result;
    u64 nbytes;  // bytes of a vector
    u64 stride;
    int vector_count;
    int own_index;  // -1: none
    int size;
};

template <class T, class Op>
__global__ void __launch_bounds__(kMaxThreads, 1) fold(const __grid_constant__ FoldArgs args) {
    const u32 member = blockIdx.x * blockDim.x + threadIdx.x, members = gridDim.x * blockDim.x;
    const auto load = [&](int k, u64 i) {
        return load_pack(k == args.own_index ? args.own : args.vectors + k * args.stride, i, args.nbytes);
    };
    const auto keep = [&](u64 i, Pack pack) { store_pack(args.result, i, args.nbytes, pack); };
    if constexpr (kGroupPacks<T> > 1) {
        fold_groups<T, Op>(member, members, packs_in(args.nbytes), args.vector_count, load, keep);
    } else {
        for (u64 i = member; i < packs_in(args.nbytes); i += members) {
            Fold<T, Op> folded;
#pragma unroll 1
            for (int k = 0; k < args.vector_count; ++k) folded.add(k, load(k, i));
            keep(i, folded.result(args.size));
        }
    }
}
