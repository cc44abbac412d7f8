// Moves of data by threads, warps and blocks of a program's own kernels, behind pyncclx.cuh: put, get, copy, packets.
//
// None of these functions signals or meets other ranks; the functions in pyncclx_moves.cuh do.
#pragma once
#include "device/team.cuh"

// A thread's place among those that share a piece of work.
struct Members {
    u32 member, members;
};

__device__ __forceinline__ u32 thread_number() {
    return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}
__device__ __forceinline__ u32 threads_of_block() { return blockDim.x * blockDim.y * blockDim.z; }
__device__ __forceinline__ Members this_thread() { return {0, 1}; }
__device__ __forceinline__ Members this_block() { return {thread_number(), threads_of_block()}; }

// The last warp of a block may have fewer than 32 threads.
__device__ __forceinline__ Members this_warp() {
    const u32 lane = thread_number() % 32;
    return {lane, u32(smaller(32, threads_of_block() - (thread_number() - lane)))};
}

__device__ __forceinline__ u32 lanes_of_warp() {
    const Members warp = this_warp();
    return warp.members == 32 ? 0xffffffffu : (1u << warp.members) - 1;
}

__device__ __forceinline__ void meet_warp() { __syncwarp(lanes_of_warp()); }

__device__ inline bool put(const View& v, DeviceFunction function, u64 dest, u64 source, u64 nbytes, int peer,
                           Members who) {
    if (nbytes == 0) return is_rank(v, function, peer);
    char* to = at_peer(v, function, dest, nbytes, peer);
    const char* from = reinterpret_cast<const char*>(source);
    if (to == nullptr) return false;
    move_packs(
        who.member, packs_in(nbytes), who.members, [&](u64 i) { return load_pack(from, i, nbytes); },
        [&](u64 i, Pack pack) { put_pack(to, i, nbytes, pack); });
    return true;
}

__device__ inline bool get(const View& v, u64 dest, u64 source, u64 nbytes, int peer, Members who) {
    if (nbytes == 0) return is_rank(v, kGet, peer);
    const char* from = at_peer(v, kGet, source, nbytes, peer);
    char* to = reinterpret_cast<char*>(dest);
    if (from == nullptr) return false;
    move_packs(
        who.member, packs_in(nbytes), who.members, [&](u64 i) { return get_pack(from, i, nbytes); },
        [&](u64 i, Pack pack) { store_pack(to, i, nbytes, pack); });
    return true;
}

// Copies between addresses of this rank's memory, or of memory that it has mapped.
__device__ inline void copy(u64 dest, u64 source, u64 nbytes, Members who) {
    const char* from = reinterpret_cast<const char*>(source);
    char* to = reinterpret_cast<char*>(dest);
    move_packs(
        who.member, packs_in(nbytes), who.members, [&](u64 i) { return load_pack(from, i, nbytes); },
        [&](u64 i, Pack pack) { store_pack(to, i, nbytes, pack); });
}

// Packets occupy twice the bytes of their payload, in whole packs.
__device__ __forceinline__ bool is_packet_place(const View& v, DeviceFunction function, u64 address) {
    return address % kPackNbytes == 0 || (v.size != 0 && misused(*v.team, kMisaligned, function, address, kPackNbytes));
}

__device__ inline bool put_packets(const View& v, u64 dest, u64 source, u64 nbytes, int peer, u32 epoch, Members who) {
    if (nbytes == 0) return is_rank(v, kPutPackets, peer);
    if (!is_packet_place(v, kPutPackets, dest)) return false;
    Pack* slot = reinterpret_cast<Pack*>(at_peer(v, kPutPackets, dest, packs_in(nbytes) * 2 * kPackNbytes, peer));
    const char* from = reinterpret_cast<const char*>(source);
    if (slot == nullptr) return false;
    move_packs(
        who.member, packs_in(nbytes), who.members, [&](u64 i) { return load_pack(from, i, nbytes); },
        [&](u64 i, Pack pack) {
            st_packet_sys(slot + 2 * i, make_packet(pack.x, epoch));
            st_packet_sys(slot + 2 * i + 1, make_packet(pack.y, epoch));
        });
    return true;
}

// One thread waits for one pack.
__device__ inline bool receive_packet(const DeviceTeam& team, const Pack* packets, u32 epoch, Pack& pack) {
    Patience patience;
    for (;;) {
        const Pack first = ld_packet_sys(packets), second = ld_packet_sys(packets + 1);
        pack = Pack{payload(first), payload(second)};
        if (is_new(first, epoch) && is_new(second, epoch)) return true;
        const Awaited what{epoch, kReceivePackets, kAnyRank, epoch, (is_new(first, epoch) ? second : first).x >> 32};
        if (!patience.lasts(team.team, [&] { return what; })) return false;
    }
}

__device__ inline bool receive_packets(const View& v, u64 dest, u64 source, u64 nbytes, u32 epoch, Members who) {
    const Pack* slot = reinterpret_cast<const Pack*>(source);
    bool ok = v.size != 0 && is_packet_place(v, kReceivePackets, source);
    for (u64 i = who.member; ok && i < packs_in(nbytes); i += who.members) {
        Pack pack;
        ok = receive_packet(*v.team, slot + 2 * i, epoch, pack);
        if (ok) store_pack(reinterpret_cast<char*>(dest), i, nbytes, pack);
    }
    return ok;
}
