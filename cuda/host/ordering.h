// The host arm of signal.cuh: the same functions over the compiler's atomics, and over hostile.h.
//
// relaxed, acquire and release mean the same here as in PTX, so ThreadSanitizer checks the protocol and not
// the CPU. Weak accesses are plain ones: a peer that looks without an acquire is a race, and gets reported.
#pragma once

namespace emulator {

EMULATOR_UNSEEN inline void touch() { current->touch(); }

EMULATOR_UNSEEN inline StoreBuffer* store_buffer() { return kRaceDetector ? nullptr : current->buffer.get(); }

EMULATOR_UNSEEN inline void release_buffered() { current->buffer->release(current->origin()); }

// A GPU faults on an address that is no multiple of the access; most CPUs would let it pass.
EMULATOR_UNSEEN inline void check_aligned(const void* p, size_t nbytes) {
    if (reinterpret_cast<size_t>(p) % nbytes != 0) current->give_up("misaligned address");
}

#if defined(__SANITIZE_THREAD__)
// ThreadSanitizer does not model fences. As in C++, a fence makes later relaxed stores releases, and acquires
// what was released to a word that was polled before (here only to the last such word).
EMULATOR_UNSEEN inline bool fenced() { return current->running->fenced; }
EMULATOR_UNSEEN inline void unfence() { current->running->fenced = false; }
EMULATOR_UNSEEN inline void polled(const void* p) { current->running->polled = p; }
EMULATOR_UNSEEN inline void fence() {
    Thread& thread = *current->running;
    thread.fenced = true;
    if (thread.polled) tsan_acquire(const_cast<void*>(thread.polled));
}
EMULATOR_UNSEEN inline void fence_sc() {}  // follows fence(): the detector has no total order
#else
inline bool fenced() { return false; }
inline void unfence() {}
inline void polled(const void*) {}
inline void fence() { __atomic_thread_fence(__ATOMIC_ACQ_REL); }
inline void fence_sc() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
#endif

template <class T>
T load_acquire(const T* p) {
    touch();
    check_aligned(p, sizeof(T));
    if (StoreBuffer* buffer = store_buffer()) return buffer->load(p);
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}

template <class T>
T load_relaxed(const T* p) {
    touch();
    check_aligned(p, sizeof(T));
    if (StoreBuffer* buffer = store_buffer()) return buffer->load(p);
    polled(p);
    return __atomic_load_n(p, __ATOMIC_RELAXED);
}

template <class T>
void store_relaxed(T* p, T value) {
    touch();
    check_aligned(p, sizeof(T));
    if (StoreBuffer* buffer = store_buffer()) return buffer->store(p, value, current->origin());
    if (fenced()) return __atomic_store_n(p, value, __ATOMIC_RELEASE);
    __atomic_store_n(p, value, __ATOMIC_RELAXED);
}

template <class T>
void store_release(T* p, T value) {
    touch();
    check_aligned(p, sizeof(T));
    if (StoreBuffer* buffer = store_buffer()) {
        release_buffered();
        buffer->settle(p);
    }
    __atomic_store_n(p, value, __ATOMIC_RELEASE);
}

// Loads are never delayed here, so hostile memory may treat it as relaxed, as a GPU does: stores before it may come after it.
// For ThreadSanitizer it is a release, which orders the loads.
template <class T>
void store_after_loads(T* p, T value) {
    store_buffer() ? store_relaxed(p, value) : store_release(p, value);
}

// Before a read-modify-write, which is never delayed: what this block has stored there comes first.
inline void settle(const void* p) {
    touch();
    if (StoreBuffer* buffer = store_buffer()) buffer->settle(p);
}

// Replaces *p by `next` if it is still *seen; otherwise *seen becomes what it is.
template <class T>
bool exchange(T* p, T* seen, T next) {
    polled(p);
    if (fenced()) return __atomic_compare_exchange(p, seen, &next, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
    return __atomic_compare_exchange(p, seen, &next, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

// Releases and acquires; returns the word as it was.
template <class T, class Change>
T read_modify_write(T* p, Change change) {
    if (store_buffer()) release_buffered();
    settle(p);
    check_aligned(p, sizeof(T));
    T seen = __atomic_load_n(p, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(p, &seen, change(seen), false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {}
    return seen;
}

}  // namespace emulator

inline u32 ld_relaxed_sys(const u32* p) { return emulator::load_relaxed(p); }
inline u64 ld_relaxed_sys(const u64* p) { return emulator::load_relaxed(p); }
inline u32 ld_acquire_sys(const u32* p) { return emulator::load_acquire(p); }
inline u64 ld_acquire_sys(const u64* p) { return emulator::load_acquire(p); }

inline void st_relaxed_sys(u32* p, u32 v) { emulator::store_relaxed(p, v); }
inline void st_relaxed_sys(u64* p, u64 v) { emulator::store_relaxed(p, v); }
inline void st_release_sys(u32* p, u32 v) { emulator::store_release(p, v); }
inline void st_release_sys(u64* p, u64 v) { emulator::store_release(p, v); }

inline u32 ld_here(const u32* p) { return *static_cast<const volatile u32*>(p); }
inline u64 ld_here(const u64* p) { return *static_cast<const volatile u64*>(p); }

inline void st_after_loads_sys(u32* p, u32 v) { emulator::store_after_loads(p, v); }
inline void st_after_loads_sys(u64* p, u64 v) { emulator::store_after_loads(p, v); }

inline Pack ld_packet_sys(const Pack* p) {
    emulator::check_aligned(p, sizeof(Pack));
    const u64 x = emulator::load_relaxed(&p->x);
    return Pack{x, emulator::load_relaxed(&p->y)};
}

inline void st_packet_sys(Pack* p, Pack v) {
    emulator::check_aligned(p, sizeof(Pack));
    emulator::store_relaxed(&p->x, v.x);
    emulator::store_relaxed(&p->y, v.y);
}

// A line is seen whole: here its last word is released after all the others, and acquired before them.
inline void st_line_sys(Pack* p, Pack v) {
    const bool has_flag = emulator::thread_index().x % 8 == 7;
    if (has_flag) st_relaxed_sys(&p->x, v.x);
    else st_packet_sys(p, v);
    __syncwarp();
    if (has_flag) st_release_sys(&p->y, v.y);
}

inline Pack ld_line_sys(const Pack* p) {
    const bool has_flag = emulator::thread_index().x % 8 == 7;
    const u64 flag = has_flag ? ld_acquire_sys(&p->y) : 0;
    __syncwarp();
    if (has_flag) return Pack{ld_relaxed_sys(&p->x), flag};
    return ld_packet_sys(p);
}

inline void put_pack(Pack* p, Pack v) {
    emulator::check_aligned(p, sizeof(Pack));
    if (emulator::StoreBuffer* buffer = emulator::store_buffer()) {
        buffer->store(&p->x, v.x, emulator::current->origin());
        buffer->store(&p->y, v.y, emulator::current->origin());
    } else {
        emulator::unfence();
        *p = v;
    }
}

inline Pack get_pack(const Pack* p) {
    emulator::check_aligned(p, sizeof(Pack));
    if (emulator::StoreBuffer* buffer = emulator::store_buffer())
        return Pack{buffer->load(&p->x), buffer->load(&p->y)};
    return *p;
}

inline void fence_sys() {
    if (emulator::store_buffer()) emulator::release_buffered();
    emulator::fence();
}

inline void fence_sc_sys() {
    fence_sys();
    emulator::fence_sc();
}

inline u32 atomic_cas_gpu(u32* p, u32 expected, u32 desired) {
    emulator::settle(p);
    emulator::exchange(p, &expected, desired);
    return expected;
}

inline u64 atomic_add_gpu(u64* p, u64 v) {
    emulator::settle(p);
    return __atomic_fetch_add(p, v, __ATOMIC_RELAXED);
}

template <class T>
T atomic_add_sys(T* p, T v) {
    return emulator::read_modify_write(p, [v](T old) { return old + v; });
}
template <class T>
T atomic_cas_sys(T* p, T expected, T desired) {
    return emulator::read_modify_write(p, [=](T old) { return old == expected ? desired : old; });
}
inline u32 atomic_add_block(u32* p, u32 v) { return atomic_add_sys(p, v); }
inline void add_release_sys(u64* p, u64 v) { atomic_add_sys(p, v); }

inline u64 clock_ns() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<u64>(t.tv_sec) * 1000000000ull + static_cast<u64>(t.tv_nsec);
}

EMULATOR_UNSEEN inline void await_previous() {
    const emulator::Launched* previous = emulator::current->how.previous;
    if (previous == nullptr) return;
    while (!previous->has_ended()) emulator::current->leave();
    previous->acquire();
}
inline void await_previous(u64) { await_previous(); }

EMULATOR_UNSEEN inline void let_next_begin() {
    emulator::Block& block = *emulator::current;
    if (block.how.launched == nullptr || block.lets_next) return;
    block.lets_next = true;
    block.how.launched->let();
}

EMULATOR_UNSEEN inline void spin_hint() { emulator::current->leave(); }

template <class T>
EMULATOR_UNSEEN T* dynamic_shared() {
    return static_cast<T*>(emulator::current->shared);
}

inline void __threadfence() {
    emulator::fence();
    emulator::fence_sc();
}
inline void __threadfence_block() { __threadfence(); }
inline void __threadfence_system() { fence_sc_sys(); }
