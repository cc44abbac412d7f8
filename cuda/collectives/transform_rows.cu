// Applies a row transform to an array of this rank, into memory of this rank; over nodes an engine sends it from there.
//
// Launch: any number of blocks of whole warps; they wait for nothing.
#include "elements/transformed_packs.cuh"

template <class From, class To, class Transform>
__global__ void __launch_bounds__(kMaxThreads, 1) transform_rows(const __grid_constant__ TransformedRows args) {
    const TransformedPacks<From, To, Transform> packs{args};
    const u64 members = u64(gridDim.x) * blockDim.x;
    for (u64 i = u64(blockIdx.x) * blockDim.x + threadIdx.x; i < packs_in(args.nbytes); i += members)
        store_pack(args.recv, i, args.nbytes, packs(nullptr, i, args.nbytes));
}
