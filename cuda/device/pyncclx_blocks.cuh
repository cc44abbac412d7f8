// The device API: barriers and collectives of blocks, between ranks and within a grid. A part of pyncclx.cuh, which
// includes it.
#pragma once

// ---- barriers: all threads of a block ------------------------------------------------------------------
//
// The blocks with the same index meet, on all ranks or on some. A team has words for the number of blocks with which it
// was made. Kernels that use these barriers on one team must follow each other on one stream.

// Releases what the block did before; acquires what the blocks with the same index did on all ranks.
PYNCCLX_API int pyncclx_barrier(pyncclx_team team) {
    const auto v = pyncclx::view(team);
    return v.size != 0 && meet_ranks(*v.team, 0xffffffffu);
}

// Like pyncclx_barrier, among the ranks in `ranks` (bit r: rank r), which all pass the same `ranks`.
PYNCCLX_API int pyncclx_barrier_among(pyncclx_team team, u32 ranks) {
    const auto v = pyncclx::view(team);
    return v.size != 0 && meet_ranks(*v.team, ranks);
}

// ---- collectives of a block: all threads of the blocks with one index, on all ranks --------------------
//
// Lengths are the same on all ranks. The ranks meet before and after: releases what the block did before, acquires what
// its counterparts did, and all results. `dest` and `array`, which peers write, are from `comm.Alloc`.

// Copies each rank's `nbytes` at `source` (any memory) to that rank's place in every rank's `dest`, in rank order.
PYNCCLX_API int pyncclx_allgather_block(pyncclx_team team, pyncclx_address dest, pyncclx_address source, u64 nbytes) {
    return pyncclx::put_to_all(team, pyncclx::kAllgather, dest, source, nbytes, 0);
}

// Sends piece r of `source` (any memory) to rank r; piece s of `dest` comes from rank s. Pieces have `nbytes`.
PYNCCLX_API int pyncclx_alltoall_block(pyncclx_team team, pyncclx_address dest, pyncclx_address source, u64 nbytes) {
    return pyncclx::put_to_all(team, pyncclx::kAlltoall, dest, source, nbytes, nbytes);
}

// Replaces `array` by the sum of all ranks' arrays of float, element by element, added in rank order.
PYNCCLX_API int pyncclx_allreduce_block_f32(pyncclx_team team, pyncclx_address array, u64 count) {
    return pyncclx::fold_for_all<float>(team, array, count);
}

// Like pyncclx_allreduce_block_f32, for double.
PYNCCLX_API int pyncclx_allreduce_block_f64(pyncclx_team team, pyncclx_address array, u64 count) {
    return pyncclx::fold_for_all<double>(team, array, count);
}

// Like pyncclx_allreduce_block_f32, for int.
PYNCCLX_API int pyncclx_allreduce_block_i32(pyncclx_team team, pyncclx_address array, u64 count) {
    return pyncclx::fold_for_all<int>(team, array, count);
}

// Like pyncclx_allreduce_block_f32, for long long.
PYNCCLX_API int pyncclx_allreduce_block_i64(pyncclx_team team, pyncclx_address array, u64 count) {
    return pyncclx::fold_for_all<i64>(team, array, count);
}

// ---- blocks of one rank: all threads of all blocks of the grid -----------------------------------------

// Returns 1 in the last block to arrive, 0 in the others. Releases what a block did before; the last one acquires what
// all did. Each such place in a kernel needs its own counter, which is 0 again when the last block has arrived.
PYNCCLX_API int pyncclx_last_block(pyncclx_team team, u32 counter) {
    const auto v = pyncclx::view(team);
    return is_counter(v, pyncclx::kLastBlock, counter) && is_last_block(counter_words(*v.team, counter));
}

// All blocks of the grid wait for each other. Releases what a block did before, acquires what the others did. The whole
// grid must fit on the GPU at once.
PYNCCLX_API int pyncclx_grid_barrier(pyncclx_team team, u32 counter) {
    const auto v = pyncclx::view(team);
    return is_counter(v, pyncclx::kGridBarrier, counter) && meet_blocks(*v.team, counter);
}
