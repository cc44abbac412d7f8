// Win.Put_signal and Win.Wait_signal: data in a peer's memory, and a count that it can wait for, without the hosts.
//
// A signal is a word of a rank's DeviceTeam, to which its peers add. What has been waited for is counted on the device, so
// that both can be captured in a graph: a wait is over when `count` more have come than were taken before.
#include "device/meetings.cuh"

constexpr u64 kFewBytes = 256;  // of which a warp moves one word a thread

struct PutArgs {
    const char* origin;
    char* target;  // as mapped here
    u64 nbytes;
};

struct PutSignalArgs {
    u64* word;     // the signal, as mapped here: looking it up in the team would take as long as half of the way there
    PutArgs data;  // none if something before on the stream has moved it
};

struct WaitSignalArgs {
    const DeviceTeam* team;
    const u64* word;
    u64* taken;  // of this signal; only waits of this rank touch it
    u64 count;
    u32 signal;
};

__device__ __forceinline__ void put(const PutArgs& data, u64 thread, u64 threads) {
    move_packs(
        thread, packs_in(data.nbytes), threads, [&](u64 i) { return load_pack(data.origin, i, data.nbytes); },
        [&](u64 i, Pack pack) { put_pack(data.target, i, data.nbytes, pack); });
}

// The same for a few bytes: the widest words that all of it is aligned to, of which one is moved at once.
__device__ __forceinline__ void put_words(const PutArgs& data, u64 thread, u64 threads) {
    by_alignment(u64(data.origin) | u64(data.target) | data.nbytes, [&](auto word) {
        using Word = decltype(word);
        for (u64 i = thread; i < data.nbytes / sizeof(Word); i += threads)
            reinterpret_cast<Word*>(data.target)[i] = reinterpret_cast<const Word*>(data.origin)[i];
    });
}

// Moves what is too much for one block; the end of the kernel comes before the signal of the next.
__global__ void __launch_bounds__(kMaxThreads, 1) put_blocks(const __grid_constant__ PutArgs args) {
    put(args, u64(blockIdx.x) * blockDim.x + threadIdx.x, u64(gridDim.x) * blockDim.x);
}

// Both kernels below are launched early, for the time between two kernels is about that of the way to a peer. So each
// waits for the one before it, a put before it moves anything, a wait before it ends. The one behind may begin when a put
// does, and when a wait is over. It ends after this one all the same, so that what is behind it sees what both have done.

// One block. Its last act releases what all its threads have stored, and what kernels and copies before it have.
__global__ void __launch_bounds__(kMaxThreads, 1) put_signal(const __grid_constant__ PutSignalArgs args) {
    await_previous();
    let_next_begin();
    if (args.data.nbytes <= kFewBytes) put_words(args.data, threadIdx.x, blockDim.x);
    else put(args.data, threadIdx.x, blockDim.x);
    __syncthreads();
    if (threadIdx.x == 0) add_release_sys(args.word, u64(1));
}

// One thread. Acquires for the kernels behind it on the stream.
__global__ void __launch_bounds__(kMaxThreads, 1) wait_signal(const __grid_constant__ WaitSignalArgs args) {
    const u64 until = atomic_add_gpu(args.taken, args.count) + args.count;
    wait_for_word(*args.team, args.word, Awaited{args.signal, kWaitSignal, kAnyRank, until, 0});
    let_next_begin();
    await_previous();
}
