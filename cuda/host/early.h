// Early launches, as CUDA's programmatic dependent launches: a kernel may begin when each block of the previous kernel has
// called let_next_begin(), or has ended. In await_previous() it waits until that kernel has ended.
#pragma once

namespace emulator {

// What the next launch on a stream sees of this one. To ThreadSanitizer its counters order nothing: only `acquire` does,
// which await_previous() and launches that are not early call.
struct Launched {
    EMULATOR_UNSEEN void begin(u32 blocks) {
        __atomic_store_n(&left_, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&let_, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&blocks_, blocks, __ATOMIC_RELEASE);
    }

    // One block: the next kernel may begin; the block has ended.
    EMULATOR_UNSEEN void let() { __atomic_add_fetch(&let_, 1, __ATOMIC_ACQ_REL); }
    EMULATOR_UNSEEN void leave() { __atomic_add_fetch(&left_, 1, __ATOMIC_ACQ_REL); }

    EMULATOR_UNSEEN bool lets_next() const { return __atomic_load_n(&let_, __ATOMIC_ACQUIRE) == blocks_; }
    EMULATOR_UNSEEN bool has_ended() const { return __atomic_load_n(&left_, __ATOMIC_ACQUIRE) == blocks_; }

    // The caller comes after what the kernel has done; `release` is called by each of its threads at the end.
    void acquire() const { tsan_acquire(const_cast<Launched*>(this)); }
    void release() { tsan_release(this); }

  private:
    u32 blocks_ = 0, let_ = 0, left_ = 0;
};

}  // namespace emulator
