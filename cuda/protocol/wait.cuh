// Bounded waits: a poll checks the abort word and the clock from time to time.
//
//   1. A thread polls a word until its condition holds, which acquires what the writer released with it.
//   2. Every kPollsBetweenLooks polls it reads LeaseHeader::failed, Watch::abort and the clock.
//   3. It also checks whether the awaited rank has made another call (calls.cuh): then the awaited word may never come.
//   4. A wait that ends early writes an error record, once per communicator, and returns false. From then on every wait
//      of the communicator on this rank stops waiting, too, so that all blocks leave.
//
// Nothing traps: the CUDA context stays usable, and the host reads the record at its next call.
#pragma once
#include "protocol/calls.cuh"

constexpr u32 kPollsBetweenLooks = 512;  // the abort word is in host memory, a read takes about 1 us; not measured

struct Awaited {  // the contents of an error record
    u32 epoch;
    int channel, peer;
    u64 expected, seen;
};

__device__ inline __noinline__ void record_failure(const Team& team, u64 failure, const Awaited& what) {
    if (atomic_cas_gpu(&lease_header(team)->failed, 0u, 1u) != 0u) return;
    Watch* watch = team.watch;
    watch->operation = team.operation;
    watch->epoch = what.epoch;
    watch->channel = u64(what.channel);
    watch->peer = u64(what.peer);
    watch->expected = what.expected;
    watch->seen = what.seen;
    st_release_sys(&watch->failure, failure);
}

__device__ inline __noinline__ void record_overflow(const Team& team, u64 kind, int source, i64 wanted, i64 capacity) {
    if (atomic_cas_gpu(&lease_header(team)->overflow, 0u, 1u) != 0u) return;
    Watch* watch = team.watch;
    watch->operation = team.operation;
    watch->source = u64(source);
    watch->wanted = u64(wanted);
    watch->capacity = u64(capacity);
    st_release_sys(&watch->overflow, kind);
}

// The polls and the deadline of one wait of a thread.
struct Patience {
    u32 polls = 0;
    u64 deadline = 0;

    // Call after every poll that found nothing. False: leave. `what()` returns what is awaited, for the error record.
    template <class What>
    __device__ __forceinline__ bool lasts(const Team& team, What what) {
        return !is_due() || look(team, what());
    }

    // The same in two parts: whether a check is due after this poll, and the check.
    __device__ __forceinline__ bool is_due() {
        spin_hint();
        return ++polls % kPollsBetweenLooks == 0;
    }

    __device__ __noinline__ bool look(const Team& team, const Awaited& what) {
        const u64 now = clock_ns();
        if (deadline == 0) deadline = now + team.timeout_ns;
        if (ld_relaxed_sys(&lease_header(team)->failed) != 0u) return false;
        const bool aborted = ld_relaxed_sys(&team.watch->abort) != 0u;
        const bool compares = team.called.words[0] != 0 && what.channel == 0 && what.peer >= 0;
        const bool differs = compares && call_differs(team, what.peer, what.epoch);
        if (!differs && !aborted && i64(now - deadline) < 0) return true;
        record_failure(team, differs ? kMismatch : aborted ? kAborted : kTimedOut, what);
        return false;
    }
};

// One thread waits until `*word`, which only grows, has reached `expected`, and acquires what its writer released with it.
// Words are compared by signed difference, so they may wrap around.
__device__ inline bool wait_for(const Team& team, const u32* word, Awaited what) {
    Patience patience;
    for (;;) {
        const u32 seen = ld_acquire_sys(word);
        if (int(seen - u32(what.expected)) >= 0) return true;
        what.seen = seen;
        if (!patience.lasts(team, [&] { return what; })) return false;
    }
}

// The same for a word with the epoch in its upper half and a count within the operation in its lower half. A value of an
// earlier operation may be so old that a signed difference would take it for a later one, so the epochs must be equal.
__device__ inline bool wait_for(const Team& team, const u64* word, Awaited what) {
    Patience patience;
    for (;;) {
        what.seen = ld_acquire_sys(word);
        if (what.seen >= what.expected && what.seen >> 32 == what.expected >> 32) return true;
        if (!patience.lasts(team, [&] { return what; })) return false;
    }
}
