// The device API: functions by which a program's own kernels communicate. #include "pyncclx.cuh"
//
// `team` is `comm.device_team().pointer`. An address is a pointer, or a 64-bit integer. Memory that a peer reads or
// writes must be from `comm.Alloc`. Pass this rank's address of it; it stands for the same place in the peer's array.
// Signals and counters are numbered from 0 on; the team has as many as it was made with, all 0 at first.
//
// Functions that can fail return 0 on a timeout, an abort or a wrong argument, and if the team's communicator has been
// freed. The communicator's next call on the host raises the error, and so does the team's `check()`. The end of a
// function's name says which threads call it together, with the same arguments: a thread, all threads of a warp, or all
// of a block. The comment before a function describes which accesses it orders; the scope is always all GPUs and the
// host. pyncclx_moves.cuh has the moves of data, pyncclx_blocks.cuh the functions of blocks, and pyncclx_partitions.cuh
// partitioned messages; this header includes all three.
#pragma once
#include "protocol/signal.cuh"

namespace pyncclx {  // only names in signal.cuh can collide with the program's
#include "device/meetings.cuh"
#include "device/pready.cuh"
}

typedef u64 pyncclx_team;

#ifndef PYNCCLX_API  // device_api.cu defines it to make functions with C linkage
#define PYNCCLX_API extern "C" __device__ __forceinline__

struct pyncclx_address {
    u64 value;
    __device__ __forceinline__ pyncclx_address(u64 value) : value(value) {}
    template <class T>
    __device__ __forceinline__ pyncclx_address(T* pointer) : value(reinterpret_cast<u64>(pointer)) {}
    __device__ __forceinline__ operator u64() const { return value; }
};
#endif

// ---- ranks and addresses: order nothing -------------------------------------------------------------------------

PYNCCLX_API int pyncclx_rank(pyncclx_team team) {
    return reinterpret_cast<const pyncclx::DeviceTeam*>(team)->team.rank;
}

// 0 after Free.
PYNCCLX_API int pyncclx_size(pyncclx_team team) {
    return reinterpret_cast<const pyncclx::DeviceTeam*>(team)->team.size;
}

// For kernels that are compiled for one number of ranks: returns 0, and reports an error, if the team has another size.
PYNCCLX_API int pyncclx_expect_size(pyncclx_team team, int size) {
    const auto v = pyncclx::view(team);
    if (v.size == 0) return 0;
    return v.size == size || misused(*v.team, pyncclx::kOtherSize, pyncclx::kExpectSize, u64(i64(size)), u64(v.size));
}

// Returns the address at which this process has mapped `peer`'s counterpart of this rank's `address`, for plain loads
// and stores; 0 on an error.
PYNCCLX_API u64 pyncclx_peer_pointer(pyncclx_team team, pyncclx_address address, int peer) {
    return reinterpret_cast<u64>(at_peer(pyncclx::view(team, peer), pyncclx::kPeerPointer, address, 1, peer));
}

// ---- signals: 64-bit words that peers write ------------------------------------------------------------

// A thread sets a signal of `peer`. Releases: what this thread did or acquired earlier is ordered before the signal.
PYNCCLX_API int pyncclx_signal_set(pyncclx_team team, int peer, u32 signal, u64 value) {
    const auto v = pyncclx::view(team, peer);
    if (!is_rank(v, pyncclx::kSignalSet, peer) || !is_signal(v, pyncclx::kSignalSet, signal)) return 0;
    st_release_sys(pyncclx::signal_word(v.peer_state, signal), value);
    return 1;
}

// A thread adds to a signal of `peer`. Over NVLink several ranks may add to one signal. Releases, like signal_set.
PYNCCLX_API int pyncclx_signal_add(pyncclx_team team, int peer, u32 signal, u64 value) {
    const auto v = pyncclx::view(team, peer);
    if (!is_rank(v, pyncclx::kSignalAdd, peer) || !is_signal(v, pyncclx::kSignalAdd, signal)) return 0;
    add_release_sys(pyncclx::signal_word(v.peer_state, signal), value);
    return 1;
}

// Returns the value of a signal of this rank; 0 if there is no such signal. Acquires what its writers released.
PYNCCLX_API u64 pyncclx_signal_read(pyncclx_team team, u32 signal) {
    const auto v = pyncclx::view(team);
    if (!is_signal(v, pyncclx::kSignalRead, signal)) return 0;
    return ld_acquire_sys(pyncclx::signal_word(own_state(*v.team), signal));
}

// A thread waits, at most for the team's timeout, until a signal of this rank has reached `value`. The signal must only
// grow. Acquires what was released with it; other threads of the block then need a barrier with this thread.
PYNCCLX_API int pyncclx_wait_until(pyncclx_team team, u32 signal, u64 value) {
    const auto v = pyncclx::view(team);
    if (!is_signal(v, pyncclx::kWaitUntil, signal)) return 0;
    const pyncclx::Awaited what{signal, pyncclx::kWaitUntil, pyncclx::kAnyRank, value, 0};
    return wait_for_word(*v.team, pyncclx::signal_word(own_state(*v.team), signal), what);
}

// All threads of a block wait as in pyncclx_wait_until; they meet before and after. Acquires for all of them.
PYNCCLX_API int pyncclx_wait_until_block(pyncclx_team team, u32 signal, u64 value) {
    __syncthreads();
    const bool ok = pyncclx::thread_number() != 0 || pyncclx_wait_until(team, signal, value);
    return __syncthreads_or(!ok) == 0;
}

// ---- order ---------------------------------------------------------------------------------------------

// Orders what this thread did or acquired earlier before what it does later, for all observers.
PYNCCLX_API void pyncclx_fence() { fence_sc_sys(); }

// Like pyncclx_fence. In addition, this thread's puts are complete, so their sources may be overwritten. (Puts are
// stores, so one instruction does both; the two names state different purposes.)
PYNCCLX_API void pyncclx_quiet() { fence_sc_sys(); }

// ---- atomics on a peer's 32- and 64-bit words ----------------------------------------------------------
//
// Each returns the old value, releases like signal_set, acquires like signal_read. Over PCIe none is atomic.

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

#include "device/pyncclx_moves.cuh"
#include "device/pyncclx_blocks.cuh"
#include "device/pyncclx_partitions.cuh"
