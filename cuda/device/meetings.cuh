// Waits and barriers of blocks in a program's own kernels, behind pyncclx.cuh: between ranks and within a grid; and
// collectives of blocks, with a barrier before and after.
//
// Barrier between ranks: 1. the block meets; 2. for each peer a thread adds 1 to this rank's word at the peer, by a
// release; 3. it waits for the peer's word, by an acquire; 4. the block meets. The words are the BarrierWords of the
// block's index, so the blocks with the same index meet on all ranks.
#pragma once
#include "device/moves.cuh"

// One thread waits until a word that only grows has reached `value`, and acquires what was released with it.
__device__ inline bool wait_for_word(const DeviceTeam& team, const u64* word, Awaited what) {
    Patience patience;
    for (;;) {
        what.seen = ld_acquire_sys(word);
        if (i64(what.seen - what.expected) >= 0) return true;
        if (!patience.lasts(team.team, [&] { return what; })) return false;
    }
}

// All threads of a block meet the blocks with the same index on the ranks in `ranks` (bit r: rank r).
__device__ inline bool meet_ranks(const DeviceTeam& team, u32 ranks) {
    const u64 block = block_number();
    if (block >= team.blocks) return misused(team, kTooManyBlocks, kBarrier, blocks_of_grid(), team.blocks);
    const int me = team.team.rank, first = int(thread_number()), step = int(threads_of_block());
    const auto meets = [&](int peer) { return peer != me && (ranks >> peer & 1) != 0; };
    BarrierWords* mine = barrier_words(team, own_state(team), block);
    __syncthreads();
    for (int peer = first; peer < team.team.size; peer += step)
        if (meets(peer))
            st_release_sys(&barrier_words(team, team.state[peer], block)->arrived[me], ++mine->sent[peer]);
    bool ok = true;
    for (int peer = first; ok && peer < team.team.size; peer += step)
        if (meets(peer))
            ok = wait_for(team.team, &mine->arrived[peer], Awaited{u32(block), kBarrier, peer, mine->sent[peer], 0});
    return __syncthreads_or(!ok) == 0;
}

// All threads of a block. Returns whether it is the grid's last block to reach the counter, which it then resets.
__device__ inline bool is_last_block(CounterWords* words) {
    bool last = false;
    __syncthreads();
    if (thread_number() == 0) {
        last = atomic_add_sys(&words->arrived, u64(1)) + 1 == blocks_of_grid();
        if (last) st_relaxed_sys(&words->arrived, u64(0));
    }
    return __syncthreads_or(last) != 0;
}

// One thread waits until all blocks of the grid have reached the counter, and `turn` has changed. A timeout records how
// many blocks arrived: if the grid does not fit on the GPU at once, some blocks cannot begin.
__device__ inline bool wait_for_blocks(const DeviceTeam& team, CounterWords* words, u32 counter, u64 turn) {
    Patience patience;
    const auto what = [&] {
        const u64 come = ld_relaxed_sys(&words->arrived);
        return Awaited{counter, kGridBarrier, team.team.rank, blocks_of_grid(), come};
    };
    while (i64(ld_acquire_sys(&words->turn) - turn) < 0)
        if (!patience.lasts(team.team, what)) return false;
    return true;
}

// All threads of all blocks of the grid meet.
__device__ inline bool meet_blocks(const DeviceTeam& team, u32 counter) {
    CounterWords* words = counter_words(team, counter);
    const u64 turn = ld_relaxed_sys(&words->turn);  // read before this block arrives, so `turn` has not changed yet
    if (is_last_block(words)) {
        if (thread_number() == 0) st_release_sys(&words->turn, turn + 1);
        return true;
    }
    const bool ok = thread_number() != 0 || wait_for_blocks(team, words, counter, turn + 1);
    return __syncthreads_or(!ok) == 0;
}

// All threads of a block put `nbytes` to this rank's place on every rank. The source advances by `step` bytes for each
// rank. The ranks meet before the puts, when the earlier contents have been used, and after them.
__device__ inline bool put_to_all(u64 handle, DeviceFunction function, u64 dest, u64 source, u64 nbytes, u64 step) {
    const View v = view(handle);
    if (v.size == 0 || !meet_ranks(*v.team, 0xffffffffu)) return false;
    bool ok = true;
    for (int j = 0; j < v.size; ++j) {
        const int peer = (v.rank + j) % v.size;
        ok &= put(view(handle, peer), function, dest + v.rank * nbytes, source + peer * step, nbytes, peer, this_block());
    }
    return meet_ranks(*v.team, 0xffffffffu) && ok;
}

// All threads of a block fold this rank's shard of all ranks' arrays, in rank order, and store it in all arrays.
template <class T>
__device__ bool fold_for_all(u64 handle, u64 array, u64 count) {
    __shared__ char* at[kMaxRanks];
    const View v = view(handle);
    if (v.size == 0 || !meet_ranks(*v.team, 0xffffffffu)) return false;
    const u64 nbytes = count * sizeof(T), packs = packs_in(nbytes), each = (packs + v.size - 1) / v.size;
    const u64 first = smaller(each * v.rank, packs), end = smaller(first + each, packs);
    for (int rank = int(thread_number()); rank < v.size; rank += int(threads_of_block()))
        at[rank] = at_peer(v, kAllreduce, array, nbytes, rank);
    __syncthreads();
    bool ok = true;
    for (int rank = 0; rank < v.size; ++rank) ok &= at[rank] != nullptr;
    for (u64 i = first + thread_number(); ok && i < end; i += threads_of_block()) {
        const Pack pack = fold_loaded<T, Sum>(v.size, [&](int rank) { return get_pack(at[rank], i, nbytes); });
        for (int rank = 0; rank < v.size; ++rank) put_pack(at[rank], i, nbytes, pack);
    }
    return meet_ranks(*v.team, 0xffffffffu) && ok;
}
