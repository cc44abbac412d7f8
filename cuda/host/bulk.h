// Bulk copies of signal.cuh: a copy is made at once by the thread that starts it, so that there is little to wait for.
//
// A barrier's word counts completed phases and, above them, the bytes that are still expected.
#pragma once

namespace emulator {

constexpr int kBytesShift = 32;

// Adds to the expected bytes, or takes from them; at zero a phase ends. Only one thread does either.
inline void expect_more(u64* barrier, u64 more) {
    u64 word = __atomic_load_n(barrier, __ATOMIC_RELAXED) + (more << kBytesShift);
    if (word >> kBytesShift == 0) word = (word + 1) & 0xffffffffu;
    __atomic_store_n(barrier, word, __ATOMIC_RELEASE);
}

inline void check_bulk(const void* a, const void* b, u32 nbytes) {
    check_aligned(a, sizeof(Pack));
    check_aligned(b, sizeof(Pack));
    if (nbytes % sizeof(Pack) != 0) current->give_up("a bulk copy of a length that is no multiple of 16");
}

}  // namespace emulator

inline void bulk_barrier_init(u64* barrier) { __atomic_store_n(barrier, u64(0), __ATOMIC_RELEASE); }
inline void bulk_expect(u64* barrier, u32 nbytes) { emulator::expect_more(barrier, nbytes); }

inline void bulk_load(void* shared, const void* global, u32 nbytes, u64* barrier) {
    emulator::check_bulk(shared, global, nbytes);
    for (u32 i = 0; i < nbytes / sizeof(Pack); ++i)
        static_cast<Pack*>(shared)[i] = get_pack(static_cast<const Pack*>(global) + i);
    emulator::expect_more(barrier, -u64(nbytes));
}

inline void bulk_await(u64* barrier, u32 phase) {
    while ((__atomic_load_n(barrier, __ATOMIC_ACQUIRE) & 1) == phase) spin_hint();
}

inline void bulk_store(void* global, const void* shared, u32 nbytes) {
    emulator::check_bulk(shared, global, nbytes);
    for (u32 i = 0; i < nbytes / sizeof(Pack); ++i)
        put_pack(static_cast<Pack*>(global) + i, static_cast<const Pack*>(shared)[i]);
}

inline void bulk_commit() {}
template <int kPending>
inline void bulk_await_read() {}
inline void bulk_await_stored() {}
inline void fence_bulk() {}
