// A program's device team, behind pyncclx.cuh: one struct in device memory, and look-ups in it.
//
// On every rank it is at the beginning of memory that all ranks have mapped, with the same layout:
//
//   DeviceTeam | SignalWord x signals | BarrierWords x blocks | CounterWords x counters
//
// Twins: pyncclx/device/team.py allocates the memory and packs the struct; pyncclx/failures/kernel_errors.py names
// functions and misuses. A wait that times out is recorded as in wait.cuh, with the function for the channel and
// its signal or block in place of the epoch. Wrong arguments are recorded as an Overflow.
#pragma once
#include "reduction/reduce.cuh"

enum DeviceFunction : int {  // the order of FUNCTIONS in pyncclx/failures/kernel_errors.py
    kPeerPointer, kPut, kGet, kPutSignal, kSignalSet, kSignalAdd, kSignalRead, kWaitUntil, kBarrier, kGridBarrier,
    kLastBlock, kAtomicAdd, kAtomicCas, kExpectSize, kWaitSignal, kPutPackets, kReceivePackets,
    kAllgather, kAlltoall, kAllreduce
};

enum Misuse : u64 {  // continues Overflow; the keys of MISUSES in pyncclx/failures/kernel_errors.py
    kNoSuchRank = 16, kNoSuchSignal, kTooManyBlocks, kNoSuchCounter, kNotInWindow, kMisaligned, kOtherSize
};

struct alignas(128) SignalWord { u64 value; };  // a line each, so that polling one does not slow down stores to another

struct alignas(128) BarrierWords {  // words for the blocks with one index
    u32 arrived[kMaxRanks];  // rank r: number of its barriers with this rank
    u32 sent[kMaxRanks];     // this rank: number of its barriers with rank r
};

struct alignas(128) CounterWords { u64 arrived, turn; };  // counts this rank's blocks

struct DeviceWindow {  // one window of every rank
    char* bases[kMaxRanks];  // as mapped in this process
    u64 nbytes[kMaxRanks];
};

struct DeviceWindows {
    u64 count;
    DeviceWindow window[1];  // count of them, and one that is all zero
};

struct alignas(128) DeviceTeam {
    Team team;  // all zero after Free
    u64 signals, blocks, counters;
    const DeviceWindows* windows;  // replaced by the host for more windows; running kernels may use this one
    char* state[kMaxRanks];  // every rank's DeviceTeam, as mapped in this process
};

constexpr int kAnyRank = -1;  // in an error record: a signal may come from any rank

// Loads a word at this place in the code instead of at its use, so that several loads are in flight together.
template <class T>
__device__ __forceinline__ T now(const T& word) {
    static_assert(sizeof(T) == sizeof(u32) || sizeof(T) == sizeof(u64), "a word");
    if constexpr (sizeof(T) == sizeof(u32)) return T(ld_here(reinterpret_cast<const u32*>(&word)));
    else return (T)ld_here(reinterpret_cast<const u64*>(&word));
}

// The words of a team that functions use. They do not change while kernels run, so they are loaded through the cache.
// An acquire empties the cache, so they are all loaded before the first acquire.
struct View {
    const DeviceTeam* team;
    int rank, size;  // size 0 after Free
    u64 signals;
    const DeviceWindows* windows;
    char* peer_state;
};

__device__ __forceinline__ View view(u64 handle, int peer = 0) {
    const DeviceTeam* team = reinterpret_cast<const DeviceTeam*>(handle);
    const Team& inner = team->team;
    return {team, now(inner.rank), now(inner.size), now(team->signals), now(team->windows),
            now(team->state[u32(peer) % kMaxRanks])};
}

// Records a wrong argument of a function; the host raises the error, and the communicator stays usable.
__device__ inline __noinline__ bool misused(const DeviceTeam& team, Misuse what, DeviceFunction function, u64 given,
                                            u64 most) {
    record_overflow(team.team, what, function, i64(given), i64(most));
    return false;
}

// These also return false for a team after Free.
__device__ __forceinline__ bool is_rank(const View& v, DeviceFunction function, int rank) {
    return u32(rank) < u32(v.size) || (v.size != 0 && misused(*v.team, kNoSuchRank, function, u64(i64(rank)), v.size));
}

__device__ __forceinline__ bool is_signal(const View& v, DeviceFunction function, u32 signal) {
    return signal < v.signals || (v.size != 0 && misused(*v.team, kNoSuchSignal, function, signal, v.signals));
}

__device__ __forceinline__ bool is_counter(const View& v, DeviceFunction function, u32 counter) {
    const u64 counters = v.team->counters;
    return counter < counters || (v.size != 0 && misused(*v.team, kNoSuchCounter, function, counter, counters));
}

__device__ __forceinline__ u64 block_number() {
    return blockIdx.x + u64(gridDim.x) * (blockIdx.y + u64(gridDim.y) * blockIdx.z);
}

__device__ __forceinline__ u64 blocks_of_grid() { return u64(gridDim.x) * gridDim.y * gridDim.z; }

// A word in a rank's memory, which begins with its DeviceTeam.
__device__ __forceinline__ u64* signal_word(char* state, u32 signal) {
    return &reinterpret_cast<SignalWord*>(state + sizeof(DeviceTeam))[signal].value;
}

__device__ __forceinline__ BarrierWords* barrier_words(const DeviceTeam& team, char* state, u64 block) {
    return reinterpret_cast<BarrierWords*>(signal_word(state, u32(team.signals))) + block;
}

__device__ __forceinline__ char* own_state(const DeviceTeam& team) {
    return reinterpret_cast<char*>(const_cast<DeviceTeam*>(&team));
}

__device__ __forceinline__ CounterWords* counter_words(const DeviceTeam& team, u32 counter) {
    return reinterpret_cast<CounterWords*>(barrier_words(team, own_state(team), team.blocks)) + counter;
}

// Returns the peer's memory that corresponds to this rank's `nbytes` at `address`; null if these are in no window.
__device__ inline char* at_peer(const View& v, DeviceFunction function, u64 address, u64 nbytes, int peer) {
    if (!is_rank(v, function, peer)) return nullptr;
    const u64 count = now(v.windows->count);
    for (u64 w = 0;; ++w) {
        const DeviceWindow& window = v.windows->window[w];
        const u64 mine = now(window.nbytes[v.rank]), theirs = now(window.nbytes[peer]);
        const u64 offset = address - u64(now(window.bases[v.rank]));
        char* const there = now(window.bases[peer]);
        if (w == count) break;
        if (offset < mine && offset <= theirs && nbytes <= theirs - offset) return there + offset;
    }
    misused(*v.team, kNotInWindow, function, address, nbytes);
    return nullptr;
}

// A word of `peer`, for atomics; null if there is none.
template <class Word>
__device__ __forceinline__ Word* word_at_peer(const View& v, DeviceFunction function, u64 address, int peer) {
    if (v.size != 0 && address % sizeof(Word) != 0) {
        misused(*v.team, kMisaligned, function, address, sizeof(Word));
        return nullptr;
    }
    return reinterpret_cast<Word*>(at_peer(v, function, address, sizeof(Word), peer));
}
