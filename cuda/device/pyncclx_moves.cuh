// The device API: moves of data between ranks. A part of pyncclx.cuh, which includes it.
#pragma once

// ---- put: from any memory of this rank to a peer's memory -----------------------------------------------
//
// Orders nothing by itself. A rank that acquires a later signal of this thread, or meets it in a later barrier, sees
// the data. After a put by a warp or block, its threads need a barrier first (__syncwarp, __syncthreads).

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

// ---- get: from a peer's memory to any memory of this rank -----------------------------------------------
//
// Orders nothing by itself. This thread can read the data; other threads of the warp or block can after a barrier.

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

// ---- put, then signal_set ------------------------------------------------------------------------------

// By a thread. Releases what was put, and what this thread did before, to the rank that acquires the signal.
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
// For this rank's own arrays, shared memory, and addresses from peer_pointer. Orders nothing by itself, like put.

PYNCCLX_API void pyncclx_copy_thread(pyncclx_address dest, pyncclx_address source, u64 nbytes) {
    pyncclx::copy(dest, source, nbytes, pyncclx::this_thread());
}

PYNCCLX_API void pyncclx_copy_warp(pyncclx_address dest, pyncclx_address source, u64 nbytes) {
    pyncclx::copy(dest, source, nbytes, pyncclx::this_warp());
}

PYNCCLX_API void pyncclx_copy_block(pyncclx_address dest, pyncclx_address source, u64 nbytes) {
    pyncclx::copy(dest, source, nbytes, pyncclx::this_block());
}

// ---- packets: short messages that contain their own flags -----------------------------------------------
//
// A message takes one trip, without a signal. A slot is memory from `comm.Alloc` at a multiple of 16 bytes. It has
// twice the message's bytes, rounded up to whole 16; nothing else may be stored in it. `epoch` is not 0, and differs
// for each message in a slot. These functions order nothing but the message itself.

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

// Receives like pyncclx_receive_packets_thread, by a warp, which meets afterwards.
PYNCCLX_API int pyncclx_receive_packets_warp(
    pyncclx_team team, pyncclx_address dest, pyncclx_address source, u64 nbytes, u32 epoch) {
    const bool ok = receive_packets(pyncclx::view(team), dest, source, nbytes, epoch, pyncclx::this_warp());
    pyncclx::meet_warp();
    return __all_sync(pyncclx::lanes_of_warp(), ok);
}

// Receives like pyncclx_receive_packets_thread, by a block, which meets afterwards.
PYNCCLX_API int pyncclx_receive_packets_block(
    pyncclx_team team, pyncclx_address dest, pyncclx_address source, u64 nbytes, u32 epoch) {
    const bool ok = receive_packets(pyncclx::view(team), dest, source, nbytes, epoch, pyncclx::this_block());
    return __syncthreads_or(!ok) == 0;
}
