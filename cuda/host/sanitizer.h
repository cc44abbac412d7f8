// Calls that describe fibers to ThreadSanitizer and AddressSanitizer. Empty in ordinary builds.
//
// To ThreadSanitizer each fiber is a thread of its own, and a switch is *not* a synchronisation: only what
// CUDA promises (launch, barriers, release and acquire) orders two CUDA threads, though one OS thread runs
// both. So a missing __syncthreads() is reported even where the emulator's schedule hides it.
#pragma once

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
// For the emulator's own bookkeeping, which a block's fibers share. Inlined it would lose the attribute.
#define EMULATOR_UNSEEN __attribute__((no_sanitize("thread"), noinline))
#else
#define EMULATOR_UNSEEN
#endif

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace emulator {

#if defined(__SANITIZE_THREAD__)
constexpr bool kRaceDetector = true;
inline void* tsan_create() { return __tsan_create_fiber(0); }
inline void* tsan_current() { return __tsan_get_current_fiber(); }
inline void tsan_destroy(void* fiber) { __tsan_destroy_fiber(fiber); }
EMULATOR_UNSEEN inline void tsan_switch(void* fiber) {
    __tsan_switch_to_fiber(fiber, __tsan_switch_to_fiber_no_sync);
}
// All that happened before a release of `edge` happens before what follows an acquire of it.
EMULATOR_UNSEEN inline void tsan_release(void* edge) { __tsan_release(edge); }
EMULATOR_UNSEEN inline void tsan_acquire(void* edge) { __tsan_acquire(edge); }
#else
constexpr bool kRaceDetector = false;
inline void* tsan_create() { return nullptr; }
inline void* tsan_current() { return nullptr; }
inline void tsan_destroy(void*) {}
inline void tsan_switch(void*) {}
inline void tsan_release(void*) {}
inline void tsan_acquire(void*) {}
#endif

// AddressSanitizer assumes one stack per thread, so each switch is announced to it before and after.
#if defined(__SANITIZE_ADDRESS__)
inline void asan_leave(void** fake, const void* bottom, size_t nbytes) {
    __sanitizer_start_switch_fiber(fake, bottom, nbytes);
}
inline void asan_arrive(void* fake, const void** from_bottom, size_t* from_nbytes) {
    __sanitizer_finish_switch_fiber(fake, from_bottom, from_nbytes);
}
inline void asan_fresh(void* bottom, size_t nbytes) { __asan_unpoison_memory_region(bottom, nbytes); }
#else
inline void asan_leave(void**, const void*, size_t) {}
inline void asan_arrive(void*, const void**, size_t*) {}
inline void asan_fresh(void*, size_t) {}
#endif

}  // namespace emulator
