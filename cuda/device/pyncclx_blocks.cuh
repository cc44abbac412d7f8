// The device API: barriers and collectives of blocks, between ranks and within a grid. A part of pyncclx.cuh, which
// includes it.
#pragma once

// ---- barriers: all threads of a block ------------------------------------------------------------------
//
// The blocks with one index meet, those of all ranks or of some; a team has words for as many blocks as it was made for.
// Kernels that use them on one team follow each other, on one stream.

// Releases what the block did before, acquires what its counterparts on all ranks did.
PYNCCLX_API int pyncclx_barrier(pyncclx_team team) {
    const auto v = pyncclx::view(team);
    return v.size != 0 && meet_ranks(*v.team, 0xffffffffu);
}

// The same among the ranks in `ranks` (bit r: rank r), which all call it with the same `ranks`.
PYNCCLX_API int pyncclx_barrier_among(pyncclx_team team, u32 ranks) {
    const auto v = pyncclx::view(team);
    return v.size != 0 && meet_ranks(*v.team, ranks);
}

// ---- collectives of a block: all threads of the blocks with one index, on all ranks --------------------
//
// With the same lengths everywhere. The ranks meet before and after, as in barrier: releases what the block did before,
// acquires what its counterparts did and all results. Arrays that peers write, `dest` and `array`, are from `comm.Alloc`.

// Every rank's `nbytes` at `source`, any memory, become the place of that rank in every rank's `dest`, in rank order.
PYNCCLX_API int pyncclx_allgather_block(pyncclx_team team, pyncclx_address dest, pyncclx_address source, u64 nbytes) {
    return pyncclx::put_to_all(team, pyncclx::kAllgather, dest, source, nbytes, 0);
}

// Piece r of `source`, any memory, goes to rank r; piece s of `dest` comes from rank s. Pieces have `nbytes`.
PYNCCLX_API int pyncclx_alltoall_block(pyncclx_team team, pyncclx_address dest, pyncclx_address source, u64 nbytes) {
    return pyncclx::put_to_all(team, pyncclx::kAlltoall, dest, source, nbytes, nbytes);
}

// `array` becomes the sum of all ranks' arrays, element by element, added in the order of the ranks: float,
PYNCCLX_API int pyncclx_allreduce_block_f32(pyncclx_team team, pyncclx_address array, u64 count) {
    return pyncclx::fold_for_all<float>(team, array, count);
}

// The same for double,
PYNCCLX_API int pyncclx_allreduce_block_f64(pyncclx_team team, pyncclx_address array, u64 count) {
    return pyncclx::fold_for_all<double>(team, array, count);
}

// The same for int,
PYNCCLX_API int pyncclx_allreduce_block_i32(pyncclx_team team, pyncclx_address array, u64 count) {
    return pyncclx::fold_for_all<int>(team, array, count);
}

// The same for long long.
PYNCCLX_API int pyncclx_allreduce_block_i64(pyncclx_team team, pyncclx_address array, u64 count) {
    return pyncclx::fold_for_all<i64>(team, array, count);
}

// ---- blocks of one rank: all threads of all blocks of the grid -----------------------------------------

// 1 in the block that comes last, 0 in the others. Releases what a block did before; acquires, in the last one, what all
// did. Each such place in a kernel takes a counter of its own, which is 0 again when the last block has come.
PYNCCLX_API int pyncclx_last_block(pyncclx_team team, u32 counter) {
    const auto v = pyncclx::view(team);
    return is_counter(v, pyncclx::kLastBlock, counter) && is_last_block(counter_words(*v.team, counter));
}

// All blocks wait for each other. Releases what a block did before, acquires what the others did. The grid must be on
// the GPU as a whole.
PYNCCLX_API int pyncclx_grid_barrier(pyncclx_team team, u32 counter) {
    const auto v = pyncclx::view(team);
    return is_counter(v, pyncclx::kGridBarrier, counter) && meet_blocks(*v.team, counter);
}
