// The order in which partial results pass from rank to rank, and the fold of two of them.
#pragma once
#include "elements/groups.cuh"
#include "elements/reduce_ops.cuh"
#include "protocol/chain.cuh"

// The order of the chain: ranks 0, 1, 2 … or 1, 0, 2 …, where rank 0 folds the first two in rank order.
struct Order {
    const int root, size;

    // The rank at a position, and also the position of a rank.
    __device__ int at(int position) const {
        const bool swapped = root == (size == 2 ? 0 : 1);
        return swapped && position < 2 ? 1 - position : position;
    }
    __device__ int last() const { return at(size - 1); }

    // The hop of a rank. Root has a second hop, for the result, if it is not the last.
    __device__ Hop hop(int rank) const {
        const int position = at(rank), to = position + 1 < size ? at(position + 1) : rank == root ? kNoRank : root;
        return Hop{position > 0 ? at(position - 1) : kNoRank, to};
    }
};

// Folds an earlier and a later part, in rank order. `finished`: the number of ranks at the last rank; 1: a partial
// result.
template <class T, class Op>
__device__ __forceinline__ Pack fold_two(Pack first, Pack second, int finished) {
    Fold<T, Op> fold;
    fold.add(0, first);
    fold.add(1, second);
    return fold.result(finished);
}
