// Memory accesses between GPUs, and the few other instructions in PTX. The only file with two implementations: PTX, and the
// host emulator (host/ordering.h).
//
// The PTX memory model orders nothing between two GPUs by itself. The library relies on these alone:
//   relaxed.sys   one word (or each half of a 16-byte packet) is read whole, in no order with other words;
//   release.sys   what this thread did before, or acquired by a barrier, is visible to the thread that acquires the word;
//   acquire.sys   the counterpart: later accesses of this thread see what the releasing thread had seen;
//   weak          plain payload traffic: a peer may read it only after a release and an acquire;
//   after loads   a word which signals that data has been loaded and may be overwritten (see below);
//   ended         what a kernel that has ended stored in this GPU's memory is there for a peer that sees a word which a later
//                 kernel of the same stream stores (see below).
// The scope is `sys` since the other side is another GPU. Every asm that orders has a "memory" clobber, otherwise the
// compiler may move ordinary accesses across it.
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

// Stores a word after loads: those of this thread, of threads that it has met at a barrier since, and of kernels that
// have ended. The loaded values have been used, so they have arrived, and the store cannot overtake the loads. PTX
// promises this order only for a release. A release takes microseconds longer, because it waits until peers have all
// stores of the multiprocessor (4 H200; docs/design_notes.md, "A receiver signals without a fence …").
// NCCL's receivers rely on the same order.
__device__ __forceinline__ void st_after_loads_sys(u32* p, u32 v) { st_relaxed_sys(p, v); }
__device__ __forceinline__ void st_after_loads_sys(u64* p, u64 v) { st_relaxed_sys(p, v); }

// The words `entered` (channel.cuh) also signal the end of earlier kernels: peers that have seen one load this rank's
// buffers in place, and store to them. In PTX this is no release, because the words are relaxed. But what an ended
// kernel stored has left its multiprocessors for the L2 cache of its GPU, from which peers load and to which they
// store. NCCL's direct reads rely on the same. A fence would add about a microsecond to each operation.

// A packet is two 64-bit words. Each is read whole, but not both together, so each must carry its own flag.
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

// A lane's 16 bytes of a line (line.cuh); those of every eighth lane end with the flag. All lanes of the warp store or
// load by one instruction. If lanes have diverged, flags are released after the rest, and acquired before it.
__device__ __forceinline__ bool is_whole_warp() { return __activemask() == 0xffffffffu; }

__device__ __forceinline__ void st_line_sys(Pack* p, Pack v) {
    __syncwarp();
    if (is_whole_warp()) {
        st_packet_sys(p, v);
        return;
    }
    const bool has_flag = threadIdx.x % 8 == 7;
    if (has_flag) p->x = v.x;
    else st_packet_sys(p, v);
    __syncwarp();
    if (has_flag) st_release_sys(&p->y, v.y);
}

__device__ __forceinline__ Pack ld_line_sys(const Pack* p) {
    __syncwarp();
    if (is_whole_warp()) return ld_packet_sys(p);
    const bool has_flag = threadIdx.x % 8 == 7;
    const u64 flag = has_flag ? ld_acquire_sys(&p->y) : 0;
    __syncwarp();
    if (has_flag) return Pack{ld_relaxed_sys(&p->x), flag};
    return ld_packet_sys(p);
}

// Payload in a peer's memory. Never ld.nc: the read-only path may miss what a peer wrote.
__device__ __forceinline__ void put_pack(Pack* p, Pack v) {
    asm volatile("st.global.v2.u64 [%0], {%1, %2};" ::"l"(p), "l"(v.x), "l"(v.y) : "memory");
}

__device__ __forceinline__ Pack get_pack(const Pack* p) {
    Pack v;
    asm volatile("ld.global.v2.u64 {%0, %1}, [%2];" : "=l"(v.x), "=l"(v.y) : "l"(p) : "memory");
    return v;
}

// Loads a word that does not change while a kernel runs: once, at this place in the code, and through the cache.
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

// Also orders earlier stores before later loads, as __threadfence_system() does: for programs' own protocols.
__device__ __forceinline__ void fence_sc_sys() { asm volatile("fence.sc.sys;" ::: "memory"); }

// A barrier among the `threads` threads, whole warps, that name the same `group` of the block, 1 to 15. Orders their
// accesses as __syncthreads orders the block's. Returns whether any thread of the group voted true.
__device__ __forceinline__ bool any_of_group(bool vote, u32 group, u32 threads) {
    u32 any;
    asm volatile(
        "{ .reg .pred mine, all; setp.ne.u32 mine, %1, 0; barrier.cta.red.or.pred all, %2, %3, mine; "
        "selp.u32 %0, 1, 0, all; }" : "=r"(any) : "r"(u32(vote)), "r"(group), "r"(threads) : "memory");
    return any != 0;
}

// Adds to a word of shared memory and returns its old value. Releases and acquires within the block: what this thread did
// before, or acquired by a barrier, is visible to threads that add to the word later.
__device__ __forceinline__ u32 atomic_add_block(u32* p, u32 v) {
    u32 seen;
    asm volatile("atom.acq_rel.cta.shared::cta.add.u32 %0, [%1], %2;"
                 : "=r"(seen) : "r"(u32(__cvta_generic_to_shared(p))), "r"(v) : "memory");
    return seen;
}

// Replaces the word by `desired` if it equals `expected`, and returns its old value. Orders nothing. Only threads of
// this GPU may use it.
__device__ __forceinline__ u32 atomic_cas_gpu(u32* p, u32 expected, u32 desired) {
    u32 seen;
    asm volatile("atom.relaxed.gpu.global.cas.b32 %0, [%1], %2, %3;"
                 : "=r"(seen) : "l"(p), "r"(expected), "r"(desired) : "memory");
    return seen;
}

// Adds, and returns the old value. Orders nothing. Only threads of this GPU may use it.
__device__ __forceinline__ u64 atomic_add_gpu(u64* p, u64 v) {
    u64 seen;
    asm volatile("atom.relaxed.gpu.global.add.u64 %0, [%1], %2;" : "=l"(seen) : "l"(p), "l"(v) : "memory");
    return seen;
}

// Adds, and releases like st_release_sys, for a word to which several ranks add.
__device__ __forceinline__ void add_release_sys(u64* p, u64 v) {
    asm volatile("red.release.sys.global.add.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

// Each returns the old value, releases like st_release_sys, and acquires like ld_acquire_sys.
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
// Two floats as e4m3, the first in the low byte; values above 448 become 448.
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

// A kernel that is launched early may begin while the previous kernel of the stream still runs. Everything after
// `await_previous` is ordered after the previous kernel. Without an early launch these functions do nothing.
__device__ __forceinline__ void await_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Waits after `dependency` has been computed from addresses and lengths; the compiler would otherwise compute them when
// they are needed. `dependency` is never ~0, but the assembler cannot exclude it, so it keeps the wait after the
// computation.
__device__ __forceinline__ void await_previous(u64 dependency) {
#if __CUDA_ARCH__ >= 900
    asm volatile("{ .reg .pred any; setp.ne.u64 any, %0, -1; @any griddepcontrol.wait; }" ::"l"(dependency) : "memory");
#endif
}

// The next kernel, if it is launched early, may begin when all blocks of this one have reached this call or ended.
__device__ __forceinline__ void let_next_begin() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// For every loop that polls: the emulator switches to another thread of the block. A GPU needs nothing.
__device__ __forceinline__ void spin_hint() {}

// The block's dynamic shared memory, aligned for Pack.
template <class T>
__device__ __forceinline__ T* dynamic_shared() {
    extern __shared__ Pack dynamic_shared_memory[];
    return reinterpret_cast<T*>(dynamic_shared_memory);
}

#endif
