// Copies of 16 bytes at a time, from and to user memory of any alignment and length.
//
// A message is cut into Packs; the last one may be partial. User memory is read and written with the widest access that its
// address allows. Nothing past the message's end is touched.
#pragma once
#include "protocol/layout.cuh"

__device__ __forceinline__ u64 smaller(u64 a, u64 b) { return a < b ? a : b; }

__device__ __forceinline__ u64 packs_in(u64 nbytes) { return (nbytes + kPackNbytes - 1) / kPackNbytes; }

// Copies `nbytes` <= 16 between a Pack's bytes and memory whose address is a multiple of sizeof(Word). Not a generic lambda:
// in programs' own kernels NVRTC 13.0 compiles it as a host function.
struct CopyWords {
    char* to;
    const char* from;
    u32 nbytes;
    template <class Word>
    __device__ __forceinline__ void operator()(Word) const {
#pragma unroll
        for (u32 i = 0; i < kPackNbytes / sizeof(Word); ++i)
            if ((i + 1) * sizeof(Word) <= nbytes)
                reinterpret_cast<Word*>(to)[i] = reinterpret_cast<const Word*>(from)[i];
    }
};

// Calls `copy` with the widest word that divides both the address and the length.
template <class Copy>
__device__ __forceinline__ void by_alignment(u64 address_and_nbytes, Copy copy) {
    if (address_and_nbytes % 8 == 0) copy(u64());
    else if (address_and_nbytes % 4 == 0) copy(u32());
    else if (address_and_nbytes % 2 == 0) copy((unsigned short)0);
    else copy((unsigned char)0);
}

// The rare cases, kept out of the loops: an address that is not a multiple of 16, and a message's last bytes.
__device__ inline __noinline__ Pack load_bytes(const char* from, u32 nbytes) {
    Pack pack{0, 0};
    by_alignment(u64(from) | nbytes, CopyWords{reinterpret_cast<char*>(&pack), from, nbytes});
    return pack;
}

__device__ inline __noinline__ void store_bytes(char* to, u32 nbytes, Pack pack) {
    by_alignment(u64(to) | nbytes, CopyWords{to, reinterpret_cast<const char*>(&pack), nbytes});
}

// Whether these are the last bytes of a message of 4-byte numbers at an aligned address. This case is inlined, because
// the code of a separate function must be fetched first (2 H200, docs/design_notes.md, "The loop that finds the last
// words …"). Whole packs at unaligned addresses use the separate function.
__device__ __forceinline__ bool are_last_words(const char* address, u32 nbytes) {
    return nbytes < kPackNbytes && (u32(u64(address)) | nbytes) % 4 == 0;
}

__device__ __forceinline__ Pack load_part(const char* from, u32 nbytes) {
    if (!are_last_words(from, nbytes)) return load_bytes(from, nbytes);
    u32 words[3];
#pragma unroll
    for (u32 w = 0; w < 3; ++w) words[w] = w * 4 < nbytes ? reinterpret_cast<const u32*>(from)[w] : 0;
    return Pack{u64(words[1]) << 32 | words[0], words[2]};
}

__device__ __forceinline__ void store_part(char* to, u32 nbytes, Pack pack) {
    if (!are_last_words(to, nbytes)) return store_bytes(to, nbytes, pack);
#pragma unroll
    for (u32 w = 0; w < 3; ++w)
        if (w * 4 < nbytes) reinterpret_cast<u32*>(to)[w] = u32((w < 2 ? pack.x : pack.y) >> w % 2 * 32);
}

// Returns pack `i` of a message of `nbytes`; bytes past the message's end are zero.
__device__ __forceinline__ Pack load_pack(const char* message, u64 i, u64 nbytes) {
    const char* from = message + i * kPackNbytes;
    const u64 left = nbytes - i * kPackNbytes;
    if (left >= kPackNbytes && u64(from) % kPackNbytes == 0) return *reinterpret_cast<const Pack*>(from);
    return load_part(from, u32(smaller(left, kPackNbytes)));
}

// Returns the pack with this thread's number, or zeros. It is loaded while the block reads its epoch.
__device__ __forceinline__ Pack load_first(const char* message, u64 nbytes) {
    return threadIdx.x < packs_in(nbytes) ? load_pack(message, threadIdx.x, nbytes) : Pack{0, 0};
}

__device__ __forceinline__ void store_pack(char* message, u64 i, u64 nbytes, Pack pack) {
    char* to = message + i * kPackNbytes;
    if (i * kPackNbytes >= nbytes) return;
    const u64 left = nbytes - i * kPackNbytes;
    if (left >= kPackNbytes && u64(to) % kPackNbytes == 0) *reinterpret_cast<Pack*>(to) = pack;
    else store_part(to, u32(smaller(left, kPackNbytes)), pack);
}

// Returns pack `i` of a message in a peer's memory.
__device__ __forceinline__ Pack get_pack(const char* message, u64 i, u64 nbytes) {
    const char* from = message + i * kPackNbytes;
    const u64 left = nbytes - i * kPackNbytes;
    if (left >= kPackNbytes && u64(from) % kPackNbytes == 0) return get_pack(reinterpret_cast<const Pack*>(from));
    return load_part(from, u32(smaller(left, kPackNbytes)));
}

__device__ __forceinline__ void put_pack(char* message, u64 i, u64 nbytes, Pack pack) {
    char* to = message + i * kPackNbytes;
    const u64 left = nbytes - i * kPackNbytes;
    if (left >= kPackNbytes && u64(to) % kPackNbytes == 0) put_pack(reinterpret_cast<Pack*>(to), pack);
    else store_part(to, u32(smaller(left, kPackNbytes)), pack);
}

// With kWhole, the pack is known to be whole and at a multiple of 16, so it needs no check.
template <bool kWhole>
__device__ __forceinline__ Pack get_pack(const char* message, u64 i, u64 nbytes) {
    if constexpr (kWhole) return get_pack(reinterpret_cast<const Pack*>(message) + i);
    else return get_pack(message, i, nbytes);
}

template <bool kWhole>
__device__ __forceinline__ void put_pack(char* message, u64 i, u64 nbytes, Pack pack) {
    if constexpr (kWhole) put_pack(reinterpret_cast<Pack*>(message) + i, pack);
    else put_pack(message, i, nbytes, pack);
}

template <bool kWhole>
__device__ __forceinline__ void store_pack(char* message, u64 i, u64 nbytes, Pack pack) {
    if constexpr (kWhole) reinterpret_cast<Pack*>(message)[i] = pack;
    else store_pack(message, i, nbytes, pack);
}

// Moves packs first, first + stride … below `packs`. kUnroll loads are issued before the first store, because a store
// to a peer would delay them. `Index` counts packs; a chunk's packs fit 32 bits, which saves registers.
template <int kUnroll = 4, class Index = u64, class Load, class Store>
__device__ __forceinline__ void move_packs(u64 first, u64 packs, u64 stride, Load load, Store store) {
    const Index end = Index(packs), step = Index(stride);
    for (Index i = Index(first); i < end; i += kUnroll * step) {
        Pack moved[kUnroll];
#pragma unroll
        for (int u = 0; u < kUnroll; ++u)
            if (i + u * step < end) moved[u] = load(i + u * step);
#pragma unroll
        for (int u = 0; u < kUnroll; ++u)
            if (i + u * step < end) store(i + u * step, moved[u]);
    }
}

// Threads copy a message between any addresses. With kPut the target may be a peer's memory, otherwise it is this rank's,
// which the kernel may then read by plain loads. The source may be a peer's memory, or may have been written by a peer.
template <bool kPut, class Index = u64>
__device__ __forceinline__ void copy_packs(u32 member, u32 members, const void* source, void* target, u64 nbytes) {
    const char* from = static_cast<const char*>(source);
    char* to = static_cast<char*>(target);
    const u64 whole = (u64(from) | u64(to)) % kPackNbytes == 0 ? nbytes / kPackNbytes : 0;
    move_packs<4, Index>(
        member, whole, members, [&](u64 i) { return get_pack<true>(from, i, nbytes); },
        [&](u64 i, Pack pack) {
            if constexpr (kPut) put_pack<true>(to, i, nbytes, pack);
            else store_pack<true>(to, i, nbytes, pack);
        });
    move_packs<1, Index>(
        whole + member, packs_in(nbytes), members, [&](u64 i) { return get_pack(from, i, nbytes); },
        [&](u64 i, Pack pack) {
            if constexpr (kPut) put_pack(to, i, nbytes, pack);
            else store_pack(to, i, nbytes, pack);
        });
}

__device__ __forceinline__ void copy_message(u32 member, u32 members, const void* from, void* to, u64 nbytes) {
    copy_packs<true>(member, members, from, to, nbytes);
}

__device__ __forceinline__ void copy_here(u32 member, u32 members, const void* from, void* to, u64 nbytes) {
    copy_packs<false>(member, members, from, to, nbytes);
}

// Returns the length of each of `parts` shares of a message, in whole packs, at most `most`.
__device__ __forceinline__ u64 share_of(u64 nbytes, int parts, u64 most) {
    return smaller(packs_in(nbytes / parts + 1) * kPackNbytes, most);
}

// Part `part` of `parts` of a message. All parts but the last consist of whole packs, or of longer units.
struct Part {
    u64 begin, nbytes;

    __device__ __forceinline__ Part(u64 message_nbytes, u32 parts, u32 part, u32 unit_nbytes = kPackNbytes) {
        const u64 units = (message_nbytes + unit_nbytes - 1) / unit_nbytes + parts - 1;
        const u64 each = (units >> 32 ? units / parts : u32(units) / parts) * unit_nbytes;  // a long division takes 100 ns
        begin = smaller(each * part, message_nbytes);
        nbytes = smaller(each, message_nbytes - begin);
    }
};
