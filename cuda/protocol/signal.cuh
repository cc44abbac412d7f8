// How words travel between GPUs. The only file with two implementations: PTX, and the host emulator.
//
// The PTX memory model orders nothing between two GPUs by itself. The library relies on these alone:
//   relaxed.sys   one word (or each half of a 16-byte packet) is seen whole, in no order with other words;
//   release.sys   what this thread did before, or saw by a barrier, is visible to whoever acquires it;
//   acquire.sys   the counterpart: later accesses of this thread see what the releasing thread had seen;
//   weak          plain payload traffic: a peer may look at it only after a release and an acquire;
//   after loads   a word that says what has been loaded, so that it may be overwritten (see below).
// The scope is `sys` since the other side is another GPU. Every asm that orders says "memory", otherwise the compiler
// may still move ordinary accesses across it.
#pragma once

typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

struct alignas(16) Pack { u64 x, y; };  // 16 bytes of payload: the widest access that one thread makes

#ifdef PYNCCLX_HOST
#include "host/emulator.h"
#else

// Polls and signals of one word.
__device__ __forceinline__ u32 ld_relaxed_sys(const u32* p) {
    u32 v;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

__device__ __forceinline__ u64 ld_relaxed_sys(const u64* p) {
    u64 v;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}

__device__ __forceinline__ u32 ld_acquire_sys(const u32* p) {
    u32 v;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

__device__ __forceinline__ u64 ld_acquire_sys(const u64* p) {
    u64 v;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}

__device__ __forceinline__ void st_relaxed_sys(u32* p, u32 v) {
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

__device__ __forceinline__ void st_relaxed_sys(u64* p, u64 v) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

__device__ __forceinline__ void st_release_sys(u32* p, u32 v) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

__device__ __forceinline__ void st_release_sys(u64* p, u64 v) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

// A word that follows loads: this thread's, those of threads that it has met at a barrier since, and those of kernels that have
// ended. What they have loaded has been used, so it has arrived: nothing is left that a store could overtake. PTX promises
// that of a release alone; but a release waits for all stores of the multiprocessor to have reached their peers too, which
// takes microseconds.
__device__ __forceinline__ void st_after_loads_sys(u32* p, u32 v) { st_relaxed_sys(p, v); }
__device__ __forceinline__ void st_after_loads_sys(u64* p, u64 v) { st_relaxed_sys(p, v); }

// A packet is two 64-bit words, each seen whole, though not together: each must carry its own flag.
__device__ __forceinline__ Pack ld_packet_sys(const Pack* p) {
    Pack v;
    asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];"
                 : "=l"(v.x), "=l"(v.y) : "l"(p) : "memory");
    return v;
}

__device__ __forceinline__ void st_packet_sys(Pack* p, Pack v) {
    asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};"
                 ::"l"(p), "l"(v.x), "l"(v.y) : "memory");
}

// A lane's 16 bytes of a line of 128 (line.cuh), which all lanes of the warp store, or load, by this one instruction.
__device__ __forceinline__ void st_line_sys(Pack* p, Pack v) {
    __syncwarp();
    st_packet_sys(p, v);
}

__device__ __forceinline__ Pack ld_line_sys(const Pack* p) {
    __syncwarp();
    return ld_packet_sys(p);
}

// Payload in a peer's memory. Never ld.nc: the read-only path need not notice that a peer wrote.
__device__ __forceinline__ void put_pack(Pack* p, Pack v) {
    asm volatile("st.global.v2.u64 [%0], {%1, %2};" ::"l"(p), "l"(v.x), "l"(v.y) : "memory");
}

__device__ __forceinline__ Pack get_pack(const Pack* p) {
    Pack v;
    asm volatile("ld.global.v2.u64 {%0, %1}, [%2];" : "=l"(v.x), "=l"(v.y) : "l"(p) : "memory");
    return v;
}

// A word that nobody writes while a kernel runs: read where this stands, once, and through the cache.
__device__ __forceinline__ u32 ld_here(const u32* p) {
    u32 v;
    asm volatile("ld.global.u32 %0, [%1];" : "=r"(v) : "l"(p));
    return v;
}

__device__ __forceinline__ u64 ld_here(const u64* p) {
    u64 v;
    asm volatile("ld.global.u64 %0, [%1];" : "=l"(v) : "l"(p));
    return v;
}

__device__ __forceinline__ void fence_sys() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

// A barrier among the `threads` threads, whole warps, that name the same `group` of the block, 1 to 15: orders their
// accesses as __syncthreads does the block's. Tells all of them whether any voted.
__device__ __forceinline__ bool any_of_group(bool vote, u32 group, u32 threads) {
    u32 any;
    asm volatile(
        "{ .reg .pred mine, all; setp.ne.u32 mine, %1, 0; barrier.cta.red.or.pred all, %2, %3, mine; "
        "selp.u32 %0, 1, 0, all; }" : "=r"(any) : "r"(u32(vote)), "r"(group), "r"(threads) : "memory");
    return any != 0;
}

// Returns the word as it was. Of shared memory: what this thread has done before, or seen by a barrier, is seen by whoever
// counts after it.
__device__ __forceinline__ u32 atomic_add_block(u32* p, u32 v) {
    u32 seen;
    asm volatile("atom.acq_rel.cta.shared::cta.add.u32 %0, [%1], %2;"
                 : "=r"(seen) : "r"(u32(__cvta_generic_to_shared(p))), "r"(v) : "memory");
    return seen;
}

// Returns the word as it was, which has been replaced if it equals `expected`. Orders nothing, and only
// threads of this GPU may take part: it claims a record.
__device__ __forceinline__ u32 atomic_cas_gpu(u32* p, u32 expected, u32 desired) {
    u32 seen;
    asm volatile("atom.relaxed.gpu.global.cas.b32 %0, [%1], %2, %3;"
                 : "=r"(seen) : "l"(p), "r"(expected), "r"(desired) : "memory");
    return seen;
}

// Returns the word as it was. Orders nothing, and only threads of this GPU may take part: it counts.
__device__ __forceinline__ u64 atomic_add_gpu(u64* p, u64 v) {
    u64 seen;
    asm volatile("atom.relaxed.gpu.global.add.u64 %0, [%1], %2;" : "=l"(seen) : "l"(p), "l"(v) : "memory");
    return seen;
}

// As st_release_sys, for a word that several ranks add to.
__device__ __forceinline__ void add_release_sys(u64* p, u64 v) {
    asm volatile("red.release.sys.global.add.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

// Each returns the word as it was; each releases as st_release_sys does, and acquires as ld_acquire_sys.
__device__ __forceinline__ u32 atomic_add_sys(u32* p, u32 v) {
    u32 seen;
    asm volatile("atom.acq_rel.sys.global.add.u32 %0, [%1], %2;" : "=r"(seen) : "l"(p), "r"(v) : "memory");
    return seen;
}

__device__ __forceinline__ u64 atomic_add_sys(u64* p, u64 v) {
    u64 seen;
    asm volatile("atom.acq_rel.sys.global.add.u64 %0, [%1], %2;" : "=l"(seen) : "l"(p), "l"(v) : "memory");
    return seen;
}

__device__ __forceinline__ u32 atomic_cas_sys(u32* p, u32 expected, u32 desired) {
    u32 seen;
    asm volatile("atom.acq_rel.sys.global.cas.b32 %0, [%1], %2, %3;"
                 : "=r"(seen) : "l"(p), "r"(expected), "r"(desired) : "memory");
    return seen;
}

__device__ __forceinline__ u64 atomic_cas_sys(u64* p, u64 expected, u64 desired) {
    u64 seen;
    asm volatile("atom.acq_rel.sys.global.cas.b64 %0, [%1], %2, %3;"
                 : "=l"(seen) : "l"(p), "l"(expected), "l"(desired) : "memory");
    return seen;
}

__device__ __forceinline__ u64 clock_ns() {
    u64 t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)::"memory");
    return t;
}

#if __CUDA_ARCH__ >= 890
#define PYNCCLX_CONVERTS_TO_FLOAT8
// Two floats as e4m3, the first in the low byte; what is larger than 448 becomes 448.
__device__ __forceinline__ unsigned short to_float8_pair(float first, float second) {
    unsigned short pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(second), "f"(first));
    return pair;
}
#endif

#if __CUDA_ARCH__ >= 800
#define PYNCCLX_CONVERTS_TO_BFLOAT16
// Two floats as bfloat16, the first in the low half.
__device__ __forceinline__ u32 to_bfloat16_pair(float first, float second) {
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
    return pair;
}
#endif

// Of a kernel that is launched early: it may begin while the one before it on the stream still runs. What is behind
// `await_previous` comes after all that the other has done. Where kernels are not launched early these do nothing.
__device__ __forceinline__ void await_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The same, and a word of addresses and lengths is known by then, which the compiler would find when it is needed. No such
// word is ~0; that it might be keeps the assembler from putting the wait before it.
__device__ __forceinline__ void await_previous(u64 known) {
#if __CUDA_ARCH__ >= 900
    asm volatile("{ .reg .pred any; setp.ne.u64 any, %0, -1; @any griddepcontrol.wait; }" ::"l"(known) : "memory");
#endif
}

// The kernel behind this one, if it is launched early, may begin when all blocks of this one have come here or ended.
__device__ __forceinline__ void let_next_begin() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// For every loop that polls. A GPU's scheduler needs no help; the emulator runs another thread of the block.
__device__ __forceinline__ void spin_hint() {}

// The block's dynamic shared memory, aligned for Pack.
template <class T>
__device__ __forceinline__ T* dynamic_shared() {
    extern __shared__ Pack dynamic_shared_memory[];
    return reinterpret_cast<T*>(dynamic_shared_memory);
}

#endif
