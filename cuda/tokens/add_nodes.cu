// The last step of a combine over nodes: adds up the nodes' sums of each token's results.
//
// In the order of the nodes, in single precision, and rounded once. Each node's sum has been
// rounded to T, and so has each rank's before (combine.cu). A warp adds up a token.
// Launch: any number of blocks of whole warps; they wait for nothing.
#include "elements/sums.cuh"
#include "tokens/over_nodes.cuh"

template <class T, class Out>
__global__ void __launch_bounds__(kMaxThreads, 1)
    add_nodes(const __grid_constant__ CrossingArgs args) {
    const i64 first = i64((u64(blockIdx.x) * blockDim.x + threadIdx.x) / 32),
              warps = i64(u64(gridDim.x) * blockDim.x / 32);
    const u64 packs = u64(args.row_nbytes) / kPackNbytes,
              nbytes = u64(args.row_nbytes) / sizeof(T) * sizeof(Out);
    for (i64 token = first; token < args.token_count; token += warps) {
        for (u64 p = threadIdx.x % 32; p < packs; p += 32) {
            Sums<T, AtOnce<1, 1>> sums;
#pragma unroll 4
            for (i64 node = 0; node < args.nodes; ++node) {
                const int number = args.where[node * args.max_tokens + token];
                if (number >= 0)
                    sums.add(
                        0, load_pack(args.on_way(node, number), p, u64(args.row_nbytes)), 1.0f);
            }
            sums.template store<Out>(0, args.out + token * nbytes, p, nbytes);
        }
    }
}
