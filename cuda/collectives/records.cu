// Allreduce, Reduce and Reduce_scatter_block of elements that do not divide 16 bytes, such as records.
//
// The operations have the same two forms as in allreduce.cu, reduce.cu and reduce_scatter_block.cu; see records.cuh.
// Launch: one block for each channel in use; kFoldThreads threads in one shot, kMaxThreads in two.
#include "reduction/records.cuh"

template <class T, class Op>
__global__ void __launch_bounds__(kFoldThreads, 1) allreduce_records_one_shot(const __grid_constant__ ReduceArgs args) {
    records_one_shot<T, Op>(args, kToAll);
}

template <class T, class Op>
__global__ void __launch_bounds__(kMaxThreads, 1) allreduce_records_two_shot(const __grid_constant__ ReduceArgs args) {
    records_two_shot<T, Op>(args, kToAll);
}

template <class T, class Op>
__global__ void __launch_bounds__(kFoldThreads, 1) reduce_records_one_shot(const __grid_constant__ ReduceArgs args) {
    records_one_shot<T, Op>(args, args.root);
}

template <class T, class Op>
__global__ void __launch_bounds__(kMaxThreads, 1) reduce_records_two_shot(const __grid_constant__ ReduceArgs args) {
    records_two_shot<T, Op>(args, args.root);
}

template <class T, class Op>
__global__ void __launch_bounds__(kFoldThreads, 1)
    reduce_scatter_block_records_one_shot(const __grid_constant__ ReduceArgs args) {
    records_one_shot<T, Op>(args, kToNone);
}

template <class T, class Op>
__global__ void __launch_bounds__(kMaxThreads, 1)
    reduce_scatter_block_records_two_shot(const __grid_constant__ ReduceArgs args) {
    records_two_shot<T, Op>(args, kToNone);
}
