// Win.Put_signal and Win.Wait_signal: store data in a peer's memory and add to a count, for which the peer waits
// without its host.
//
// A signal is a word of a rank's DeviceTeam, to which its peers add. The device counts the signals that waits have
// used, so that both can be captured in a graph. A wait ends when `count` more have arrived than were used before.
//   put_blocks   any number of blocks: moves what is too much for one block, before put_signal
//   put_signal   one block: moves the data; a barrier, then one thread's release covers what all threads stored
//   wait_signal  one thread: acquires for the next kernels of the stream
#include "device/meetings.cuh"

constexpr u64 kFewBytes = 256;  // at most, by words of their alignment; not measured

struct PutArgs {
    const char* origin;
    char* target;  // as mapped here
    u64 nbytes;
};

struct PutSignalArgs {
    u64* word;     // the signal, as mapped here: a look-up in the team would take half as long as the way to the peer
    PutArgs data;  // none if put_blocks or a copy has moved it
};

struct WaitSignalArgs {
    const DeviceTeam* team;
    const u64* word;
    u64* taken;  // signals used by waits; only waits of this rank change it
    u64 count;
    u32 signal;
};

__device__ __forceinline__ void put(const PutArgs& data, u64 thread, u64 threads) {
    move_packs(
        thread, packs_in(data.nbytes), threads, [&](u64 i) { return load_pack(data.origin, i, data.nbytes); },
        [&](u64 i, Pack pack) { put_pack(data.target, i, data.nbytes, pack); });
}

// The same for a few bytes: by the widest words to which addresses and length are aligned.
__device__ __forceinline__ void put_words(const PutArgs& data, u64 thread, u64 threads) {
    by_alignment(u64(data.origin) | u64(data.target) | data.nbytes, [&](auto word) {
        using Word = decltype(word);
        for (u64 i = thread; i < data.nbytes / sizeof(Word); i += threads)
            reinterpret_cast<Word*>(data.target)[i] = reinterpret_cast<const Word*>(data.origin)[i];
    });
}

// Moves what is too much for one block. The kernel ends before the next one signals.
template <class = void>
__global__ void __launch_bounds__(kMaxThreads, 1) put_blocks(const __grid_constant__ PutArgs args) {
    put(args, u64(blockIdx.x) * blockDim.x + threadIdx.x, u64(gridDim.x) * blockDim.x);
}

// Both kernels below are launched early, for the time between two kernels is about that of the way to a peer (4 H200,
// docs/design_notes.md, "Puts with signals …"). So each waits for the previous kernel: a put before it moves data, a
// wait before it ends. The next kernel may begin when a put begins, and when a wait is over. It still ends after this
// one, so the kernels behind it see what both have done.

// One block. Its signal releases what all its threads stored, and what earlier kernels and copies stored.
template <class = void>
__global__ void __launch_bounds__(kMaxThreads, 1) put_signal(const __grid_constant__ PutSignalArgs args) {
    await_previous();
    let_next_begin();
    if (args.data.nbytes <= kFewBytes) put_words(args.data, threadIdx.x, blockDim.x);
    else put(args.data, threadIdx.x, blockDim.x);
    __syncthreads();
    if (threadIdx.x == 0) add_release_sys(args.word, u64(1));
}

// One thread. Acquires for the next kernels of the stream.
template <class = void>
__global__ void __launch_bounds__(kMaxThreads, 1) wait_signal(const __grid_constant__ WaitSignalArgs args) {
    const u64 until = atomic_add_gpu(args.taken, args.count) + args.count;
    wait_for_word(*args.team, args.word, Awaited{args.signal, kWaitSignal, kAnyRank, until, 0});
    let_next_begin();
    await_previous();
}
