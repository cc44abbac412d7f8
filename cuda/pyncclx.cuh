// The device API: functions with which a program's own kernels communicate. #include "pyncclx.cuh"
//
// `team` is what `comm.device_team().pointer` gives. An address is a pointer, or a 64-bit integer. Memory that a peer is
// to write or read is memory from `comm.Alloc`, named by this rank's address of it: the same place in the peer's array
// is meant. Signals and counters are numbered; the team has as many as it was made with, all 0 at first.
//
// Functions that can fail return 0 when they do: a wait whose time is over, an abort, an argument that is none, a team
// whose communicator has been freed. What happened is raised by the communicator's next call on the host, or by the
// team's `check()`. Names say who takes part: a thread, all threads of a warp, or all of a block, with the same
// arguments. Before each stands what it orders; the scope is always all GPUs and the host.
#pragma once
#include "signal.cuh"

namespace pyncclx {  // but for signal.cuh's, no names of ours meet the program's
#include "device_meetings.cuh"
}

typedef u64 pyncclx_team;

#ifndef PYNCCLX_API  // device_api.cu makes them functions for others to link, who know no C++
#define PYNCCLX_API extern "C" __device__ __forceinline__

struct pyncclx_address {
    u64 value;
    __device__ __forceinline__ pyncclx_address(u64 value) : value(value) {}
    template <class T>
    __device__ __forceinline__ pyncclx_address(T* pointer) : value(reinterpret_cast<u64>(pointer)) {}
    __device__ __forceinline__ operator u64() const { return value; }
};
#endif

// ---- who is who: order nothing -------------------------------------------------------------------------

PYNCCLX_API int pyncclx_rank(pyncclx_team team) {
    return reinterpret_cast<const pyncclx::DeviceTeam*>(team)->team.rank;
}

// 0 after Free.
PYNCCLX_API int pyncclx_size(pyncclx_team team) {
    return reinterpret_cast<const pyncclx::DeviceTeam*>(team)->team.size;
}

// For kernels that are made for one number of ranks: 0, and an error on the host, if there are others.
PYNCCLX_API int pyncclx_expect_size(pyncclx_team team, int size) {
    const auto v = pyncclx::view(team);
    if (v.size == 0) return 0;
    return v.size == size || misused(*v.team, pyncclx::kOtherSize, pyncclx::kExpectSize, u64(i64(size)), u64(v.size));
}

// Where this process has mapped `peer`'s counterpart of this rank's `address`, for loads and stores of one's own; or 0.
PYNCCLX_API u64 pyncclx_peer_pointer(pyncclx_team team, pyncclx_address address, int peer) {
    return reinterpret_cast<u64>(at_peer(pyncclx::view(team, peer), pyncclx::kPeerPointer, address, 1, peer));
}

// ---- put: from this rank's memory, any, to a peer's ----------------------------------------------------
//
// Orders nothing by itself: it is there for whoever acquires a signal, or meets in a barrier, that this thread gives
// afterwards; what a warp or a block put together, after it has met (__syncwarp, __syncthreads).

PYNCCLX_API int pyncclx_put_thread(
    pyncclx_team team, pyncclx_address dest, pyncclx_address source, u64 nbytes, int peer) {
    return put(pyncclx::view(team, peer), pyncclx::kPut, dest, source, nbytes, peer, pyncclx::this_thread());
}

PYNCCLX_API int pyncclx_put_warp(
    pyncclx_team team, pyncclx_address dest, pyncclx_address source, u64 nbytes, int peer) {
    return put(pyncclx::view(team, peer), pyncclx::kPut, dest, source, nbytes, peer, pyncclx::this_warp());
}

PYNCCLX_API int pyncclx_put_block(
    pyncclx_team team, pyncclx_address dest, pyncclx_address source, u64 nbytes, int peer) {
    return put(pyncclx::view(team, peer), pyncclx::kPut, dest, source, nbytes, peer, pyncclx::this_block());
}

// ---- get: from a peer's memory to this rank's, any -----------------------------------------------------
//
// Orders nothing by itself: it is there for this thread, and for the others of a warp or block after they have met.

PYNCCLX_API int pyncclx_get_thread(
    pyncclx_team team, pyncclx_address dest, pyncclx_address source, u64 nbytes, int peer) {
    return get(pyncclx::view(team, peer), dest, source, nbytes, peer, pyncclx::this_thread());
}

PYNCCLX_API int pyncclx_get_warp(
    pyncclx_team team, pyncclx_address dest, pyncclx_address source, u64 nbytes, int peer) {
    return get(pyncclx::view(team, peer), dest, source, nbytes, peer, pyncclx::this_warp());
}

PYNCCLX_API int pyncclx_get_block(
    pyncclx_team team, pyncclx_address dest, pyncclx_address source, u64 nbytes, int peer) {
    return get(pyncclx::view(team, peer), dest, source, nbytes, peer, pyncclx::this_block());
}

// ---- signals: 64-bit words that peers write ------------------------------------------------------------

// A thread sets a signal of `peer`. Releases: what this thread did or saw before comes before the signal.
PYNCCLX_API int pyncclx_signal_set(pyncclx_team team, int peer, u32 signal, u64 value) {
    const auto v = pyncclx::view(team, peer);
    if (!is_rank(v, pyncclx::kSignalSet, peer) || !is_signal(v, pyncclx::kSignalSet, signal)) return 0;
    st_release_sys(pyncclx::signal_word(v.peer_state, signal), value);
    return 1;
}

// A thread adds to a signal of `peer`, which several ranks may do. Releases, as signal_set.
PYNCCLX_API int pyncclx_signal_add(pyncclx_team team, int peer, u32 signal, u64 value) {
    const auto v = pyncclx::view(team, peer);
    if (!is_rank(v, pyncclx::kSignalAdd, peer) || !is_signal(v, pyncclx::kSignalAdd, signal)) return 0;
    add_release_sys(pyncclx::signal_word(v.peer_state, signal), value);
    return 1;
}

// What a signal of this rank says now; 0 if there is no such signal. Acquires what its writers released.
PYNCCLX_API u64 pyncclx_signal_read(pyncclx_team team, u32 signal) {
    const auto v = pyncclx::view(team);
    if (!is_signal(v, pyncclx::kSignalRead, signal)) return 0;
    return ld_acquire_sys(pyncclx::signal_word(own_state(*v.team), signal));
}

// A thread waits until a signal of this rank, which only grows, has reached `value`, for at most the team's timeout.
// Acquires what was released with it; others of a block see that after they have met with this thread.
PYNCCLX_API int pyncclx_wait_until(pyncclx_team team, u32 signal, u64 value) {
    const auto v = pyncclx::view(team);
    if (!is_signal(v, pyncclx::kWaitUntil, signal)) return 0;
    const pyncclx::Awaited what{signal, pyncclx::kWaitUntil, pyncclx::kAnyRank, value, 0};
    return wait_for_word(*v.team, pyncclx::signal_word(own_state(*v.team), signal), what);
}

// The same by all threads of a block, which meet before and after. Acquires for all of them.
PYNCCLX_API int pyncclx_wait_until_block(pyncclx_team team, u32 signal, u64 value) {
    __syncthreads();
    const bool ok = pyncclx::thread_number() != 0 || pyncclx_wait_until(team, signal, value);
    return __syncthreads_or(!ok) == 0;
}

// ---- put, then signal_set ------------------------------------------------------------------------------

// By a thread. Releases: whoever acquires the signal sees what was put, and what this thread did before.
PYNCCLX_API int pyncclx_put_signal_thread(
    pyncclx_team team, pyncclx_address dest, pyncclx_address source, u64 nbytes, int peer, u32 signal, u64 value) {
    const auto v = pyncclx::view(team, peer);
    if (!is_signal(v, pyncclx::kPutSignal, signal)) return 0;
    if (!put(v, pyncclx::kPutSignal, dest, source, nbytes, peer, pyncclx::this_thread())) return 0;
    st_release_sys(pyncclx::signal_word(v.peer_state, signal), value);
    return 1;
}

// By all threads of a warp. Releases what all of them put and did before.
PYNCCLX_API int pyncclx_put_signal_warp(
    pyncclx_team team, pyncclx_address dest, pyncclx_address source, u64 nbytes, int peer, u32 signal, u64 value) {
    const auto v = pyncclx::view(team, peer);
    if (!is_signal(v, pyncclx::kPutSignal, signal)) return 0;
    if (!put(v, pyncclx::kPutSignal, dest, source, nbytes, peer, pyncclx::this_warp())) return 0;
    pyncclx::meet_warp();
    if (pyncclx::this_warp().member == 0) st_release_sys(pyncclx::signal_word(v.peer_state, signal), value);
    return 1;
}

// By all threads of a block. Releases what all of them put and did before.
PYNCCLX_API int pyncclx_put_signal_block(
    pyncclx_team team, pyncclx_address dest, pyncclx_address source, u64 nbytes, int peer, u32 signal, u64 value) {
    const auto v = pyncclx::view(team, peer);
    if (!is_signal(v, pyncclx::kPutSignal, signal)) return 0;
    if (!put(v, pyncclx::kPutSignal, dest, source, nbytes, peer, pyncclx::this_block())) return 0;
    __syncthreads();
    if (pyncclx::thread_number() == 0) st_release_sys(pyncclx::signal_word(v.peer_state, signal), value);
    return 1;
}

// ---- copy: between addresses that this rank has mapped -------------------------------------------------
//
// Its own arrays, shared memory, and what peer_pointer gives. Orders nothing by itself, as put.

PYNCCLX_API void pyncclx_copy_thread(pyncclx_address dest, pyncclx_address source, u64 nbytes) {
    pyncclx::copy(dest, source, nbytes, pyncclx::this_thread());
}

PYNCCLX_API void pyncclx_copy_warp(pyncclx_address dest, pyncclx_address source, u64 nbytes) {
    pyncclx::copy(dest, source, nbytes, pyncclx::this_warp());
}

PYNCCLX_API void pyncclx_copy_block(pyncclx_address dest, pyncclx_address source, u64 nbytes) {
    pyncclx::copy(dest, source, nbytes, pyncclx::this_block());
}

// ---- packets: short messages that carry their own flag -------------------------------------------------
//
// In one trip, without a signal. A slot is memory from `comm.Alloc`, at a multiple of 16, of twice the message's bytes
// rounded up to whole 16; nothing else may be stored in it. `epoch` is not 0, and another one for each message in a slot.
// Order nothing but the message itself: the receiver has its bytes.

// Puts a message into a peer's slot `dest`.
PYNCCLX_API int pyncclx_put_packets_thread(
    pyncclx_team team, pyncclx_address dest, pyncclx_address source, u64 nbytes, int peer, u32 epoch) {
    return put_packets(pyncclx::view(team, peer), dest, source, nbytes, peer, epoch, pyncclx::this_thread());
}

PYNCCLX_API int pyncclx_put_packets_warp(
    pyncclx_team team, pyncclx_address dest, pyncclx_address source, u64 nbytes, int peer, u32 epoch) {
    return put_packets(pyncclx::view(team, peer), dest, source, nbytes, peer, epoch, pyncclx::this_warp());
}

PYNCCLX_API int pyncclx_put_packets_block(
    pyncclx_team team, pyncclx_address dest, pyncclx_address source, u64 nbytes, int peer, u32 epoch) {
    return put_packets(pyncclx::view(team, peer), dest, source, nbytes, peer, epoch, pyncclx::this_block());
}

// Waits for the message of this epoch in this rank's slot `source`, and stores it at `dest`, any memory.
PYNCCLX_API int pyncclx_receive_packets_thread(
    pyncclx_team team, pyncclx_address dest, pyncclx_address source, u64 nbytes, u32 epoch) {
    return receive_packets(pyncclx::view(team), dest, source, nbytes, epoch, pyncclx::this_thread());
}

// The same by a warp, which meets afterwards.
PYNCCLX_API int pyncclx_receive_packets_warp(
    pyncclx_team team, pyncclx_address dest, pyncclx_address source, u64 nbytes, u32 epoch) {
    const bool ok = receive_packets(pyncclx::view(team), dest, source, nbytes, epoch, pyncclx::this_warp());
    pyncclx::meet_warp();
    return __all_sync(pyncclx::lanes_of_warp(), ok);
}

// The same by a block, which meets afterwards.
PYNCCLX_API int pyncclx_receive_packets_block(
    pyncclx_team team, pyncclx_address dest, pyncclx_address source, u64 nbytes, u32 epoch) {
    const bool ok = receive_packets(pyncclx::view(team), dest, source, nbytes, epoch, pyncclx::this_block());
    return __syncthreads_or(!ok) == 0;
}

// ---- barriers: all threads of a block ------------------------------------------------------------------
//
// The blocks with one index meet, those of all ranks or of some; a team has words for as many blocks as it was made for.
// Kernels that use them on one team follow each other, on one stream.

// Releases what the block did before, acquires what its counterparts on all ranks did.
PYNCCLX_API int pyncclx_barrier(pyncclx_team team) {
    const auto v = pyncclx::view(team);
    return v.size != 0 && meet_ranks(*v.team, 0xffffffffu);
}

// The same among the ranks in `ranks` (bit r: rank r), who all call it with the same ones.
PYNCCLX_API int pyncclx_barrier_among(pyncclx_team team, u32 ranks) {
    const auto v = pyncclx::view(team);
    return v.size != 0 && meet_ranks(*v.team, ranks);
}

// ---- collectives of a block: all threads of the blocks with one index, on all ranks --------------------
//
// With the same lengths everywhere. The ranks meet before and after, as in barrier: releases what the block did before,
// acquires what its counterparts did and all results. Arrays that peers write, `dest` and `array`, are from `comm.Alloc`.

// Every rank's `nbytes` at `source`, any memory, become the place of that rank in everybody's `dest`, in rank order.
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

// ---- order ---------------------------------------------------------------------------------------------

// What this thread did or saw before comes before what it does from now on, for everyone.
PYNCCLX_API void pyncclx_fence() { fence_sys(); }

// The same, and puts by this thread are complete: their sources may be overwritten. (As puts are stores, one
// instruction does both; the two names mean different things to a reader.)
PYNCCLX_API void pyncclx_quiet() { fence_sys(); }

// ---- atomics on a peer's 32- and 64-bit words ----------------------------------------------------------
//
// Each returns the word as it was. Releases as signal_set and acquires as signal_read.

PYNCCLX_API u32 pyncclx_atomic_add_u32(pyncclx_team team, pyncclx_address address, u32 value, int peer) {
    u32* word = pyncclx::word_at_peer<u32>(pyncclx::view(team, peer), pyncclx::kAtomicAdd, address, peer);
    return word == nullptr ? 0 : atomic_add_sys(word, value);
}

PYNCCLX_API u64 pyncclx_atomic_add_u64(pyncclx_team team, pyncclx_address address, u64 value, int peer) {
    u64* word = pyncclx::word_at_peer<u64>(pyncclx::view(team, peer), pyncclx::kAtomicAdd, address, peer);
    return word == nullptr ? 0 : atomic_add_sys(word, value);
}

// Replaces the word by `desired` if it is `expected`.
PYNCCLX_API u32 pyncclx_atomic_cas_u32(
    pyncclx_team team, pyncclx_address address, u32 expected, u32 desired, int peer) {
    u32* word = pyncclx::word_at_peer<u32>(pyncclx::view(team, peer), pyncclx::kAtomicCas, address, peer);
    return word == nullptr ? 0 : atomic_cas_sys(word, expected, desired);
}

PYNCCLX_API u64 pyncclx_atomic_cas_u64(
    pyncclx_team team, pyncclx_address address, u64 expected, u64 desired, int peer) {
    u64* word = pyncclx::word_at_peer<u64>(pyncclx::view(team, peer), pyncclx::kAtomicCas, address, peer);
    return word == nullptr ? 0 : atomic_cas_sys(word, expected, desired);
}
