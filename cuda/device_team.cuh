// What a program's own kernels are told of their communicator: one struct in device memory, behind pyncclx.cuh.
//
// It stands at the beginning of memory of every rank that all ranks have mapped, alike on all of them:
//
//   DeviceTeam | SignalWord x signals | BarrierWords x blocks | CounterWords x counters
//
// `pyncclx/device_team.py` allocates it and packs the struct. A wait that gives up is recorded as in wait.cuh, with the
// function in the place of the channel and its signal or block in that of the epoch; wrong arguments are an Overflow.
#pragma once
#include "reduce.cuh"

enum DeviceFunction : int {  // the order of FUNCTIONS in pyncclx/device_team.py
    kPeerPointer, kPut, kGet, kPutSignal, kSignalSet, kSignalAdd, kSignalRead, kWaitUntil, kBarrier, kGridBarrier,
    kLastBlock, kAtomicAdd, kAtomicCas, kExpectSize, kWaitSignal, kPutPackets, kReceivePackets,
    kAllgather, kAlltoall, kAllreduce
};

enum Misuse : u64 {  // continues Overflow; the keys of MISUSES in pyncclx/device_team.py
    kNoSuchRank = 16, kNoSuchSignal, kTooManyBlocks, kNoSuchCounter, kNotInWindow, kMisaligned, kOtherSize
};

struct alignas(128) SignalWord { u64 value; };  // a line each: polls of one do not slow stores to another

struct alignas(128) BarrierWords {  // of the blocks with one index
    u32 arrived[kMaxRanks];  // rank r: how often it has come to a barrier with this rank
    u32 sent[kMaxRanks];     // this rank: how often it has with rank r
};

struct alignas(128) CounterWords { u64 arrived, turn; };  // of this rank's blocks

struct DeviceWindow {  // of every rank
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
    const DeviceWindows* windows;  // the host has others when there are more; kernels may go on with these
    char* state[kMaxRanks];  // every rank's DeviceTeam, as mapped in this process
};

constexpr int kAnyRank = -1;  // in an error record: a signal may come from whomever

// Reads a word here, and not where it is used: what is read in a row travels together.
template <class T>
__device__ __forceinline__ T now(const T& word) { return *const_cast<const volatile T*>(&word); }

// What functions look up in a team. An acquire empties the cache, so that each trip to memory would count.
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

// Records what a function was given and could not use; the host raises it, and the communicator goes on.
__device__ inline __noinline__ bool misused(const DeviceTeam& team, Misuse what, DeviceFunction function, u64 given,
                                            u64 most) {
    record_overflow(team.team, what, function, i64(given), i64(most));
    return false;
}

// These are false in a team after Free, too.
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

// In a rank's memory, which begins with its DeviceTeam.
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

// The memory of `peer` that corresponds to `nbytes` from `address` on of this rank's; null if that is in no window.
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

// A thread's place among those that share a piece of work.
struct Members {
    u32 member, members;
};

__device__ __forceinline__ u32 thread_number() {
    return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}
__device__ __forceinline__ u32 threads_of_block() { return blockDim.x * blockDim.y * blockDim.z; }
__device__ __forceinline__ Members this_thread() { return {0, 1}; }
__device__ __forceinline__ Members this_block() { return {thread_number(), threads_of_block()}; }

// The last warp of a block may have fewer than 32 threads.
__device__ __forceinline__ Members this_warp() {
    const u32 lane = thread_number() % 32;
    return {lane, u32(smaller(32, threads_of_block() - (thread_number() - lane)))};
}

__device__ __forceinline__ u32 lanes_of_warp() {
    const Members warp = this_warp();
    return warp.members == 32 ? 0xffffffffu : (1u << warp.members) - 1;
}

__device__ __forceinline__ void meet_warp() { __syncwarp(lanes_of_warp()); }

__device__ inline bool put(const View& v, DeviceFunction function, u64 dest, u64 source, u64 nbytes, int peer,
                           Members who) {
    if (nbytes == 0) return is_rank(v, function, peer);
    char* to = at_peer(v, function, dest, nbytes, peer);
    const char* from = reinterpret_cast<const char*>(source);
    if (to == nullptr) return false;
    move_packs(
        who.member, packs_in(nbytes), who.members, [&](u64 i) { return load_pack(from, i, nbytes); },
        [&](u64 i, Pack pack) { put_pack(to, i, nbytes, pack); });
    return true;
}

__device__ inline bool get(const View& v, u64 dest, u64 source, u64 nbytes, int peer, Members who) {
    if (nbytes == 0) return is_rank(v, kGet, peer);
    const char* from = at_peer(v, kGet, source, nbytes, peer);
    char* to = reinterpret_cast<char*>(dest);
    if (from == nullptr) return false;
    move_packs(
        who.member, packs_in(nbytes), who.members, [&](u64 i) { return get_pack(from, i, nbytes); },
        [&](u64 i, Pack pack) { store_pack(to, i, nbytes, pack); });
    return true;
}

// Between addresses of this rank's, or that it has mapped.
__device__ inline void copy(u64 dest, u64 source, u64 nbytes, Members who) {
    const char* from = reinterpret_cast<const char*>(source);
    char* to = reinterpret_cast<char*>(dest);
    move_packs(
        who.member, packs_in(nbytes), who.members, [&](u64 i) { return load_pack(from, i, nbytes); },
        [&](u64 i, Pack pack) { store_pack(to, i, nbytes, pack); });
}

// Packets take twice the bytes of what they carry, in whole packs.
__device__ __forceinline__ bool is_packet_place(const View& v, DeviceFunction function, u64 address) {
    return address % kPackNbytes == 0 || (v.size != 0 && misused(*v.team, kMisaligned, function, address, kPackNbytes));
}

__device__ inline bool put_packets(const View& v, u64 dest, u64 source, u64 nbytes, int peer, u32 epoch, Members who) {
    if (nbytes == 0) return is_rank(v, kPutPackets, peer);
    if (!is_packet_place(v, kPutPackets, dest)) return false;
    Pack* slot = reinterpret_cast<Pack*>(at_peer(v, kPutPackets, dest, packs_in(nbytes) * 2 * kPackNbytes, peer));
    const char* from = reinterpret_cast<const char*>(source);
    if (slot == nullptr) return false;
    move_packs(
        who.member, packs_in(nbytes), who.members, [&](u64 i) { return load_pack(from, i, nbytes); },
        [&](u64 i, Pack pack) {
            st_packet_sys(slot + 2 * i, make_packet(pack.x, epoch));
            st_packet_sys(slot + 2 * i + 1, make_packet(pack.y, epoch));
        });
    return true;
}

// One thread waits for one pack.
__device__ inline bool receive_packet(const DeviceTeam& team, const Pack* packets, u32 epoch, Pack& pack) {
    Patience patience;
    for (;;) {
        const Pack first = ld_packet_sys(packets), second = ld_packet_sys(packets + 1);
        pack = Pack{payload(first), payload(second)};
        if (is_new(first, epoch) && is_new(second, epoch)) return true;
        const Awaited what{epoch, kReceivePackets, kAnyRank, epoch, (is_new(first, epoch) ? second : first).x >> 32};
        if (!patience.lasts(team.team, [&] { return what; })) return false;
    }
}

__device__ inline bool receive_packets(const View& v, u64 dest, u64 source, u64 nbytes, u32 epoch, Members who) {
    const Pack* slot = reinterpret_cast<const Pack*>(source);
    bool ok = v.size != 0 && is_packet_place(v, kReceivePackets, source);
    for (u64 i = who.member; ok && i < packs_in(nbytes); i += who.members) {
        Pack pack;
        ok = receive_packet(*v.team, slot + 2 * i, epoch, pack);
        if (ok) store_pack(reinterpret_cast<char*>(dest), i, nbytes, pack);
    }
    return ok;
}

// One thread waits until a word that only grows has reached `value`, and acquires what was released with it.
__device__ inline bool wait_for_word(const DeviceTeam& team, const u64* word, Awaited what) {
    Patience patience;
    for (;;) {
        what.seen = ld_acquire_sys(word);
        if (i64(what.seen - what.expected) >= 0) return true;
        if (!patience.lasts(team.team, [&] { return what; })) return false;
    }
}

// All threads of a block meet this one's counterparts on the ranks in `ranks` (bit r: rank r).
__device__ inline bool meet_ranks(const DeviceTeam& team, u32 ranks) {
    const u64 block = block_number();
    if (block >= team.blocks) return misused(team, kTooManyBlocks, kBarrier, blocks_of_grid(), team.blocks);
    const int me = team.team.rank, first = int(thread_number()), step = int(threads_of_block());
    const auto meets = [&](int peer) { return peer != me && (ranks >> peer & 1) != 0; };
    BarrierWords* mine = barrier_words(team, own_state(team), block);
    __syncthreads();
    for (int peer = first; peer < team.team.size; peer += step)
        if (meets(peer))
            st_release_sys(&barrier_words(team, team.state[peer], block)->arrived[me], ++mine->sent[peer]);
    bool ok = true;
    for (int peer = first; ok && peer < team.team.size; peer += step)
        if (meets(peer))
            ok = wait_for(team.team, &mine->arrived[peer], Awaited{u32(block), kBarrier, peer, mine->sent[peer], 0});
    return __syncthreads_or(!ok) == 0;
}

// All threads of a block; whether it is the last of the grid's that comes to the counter, which it makes 0 again.
__device__ inline bool is_last_block(CounterWords* words) {
    bool last = false;
    __syncthreads();
    if (thread_number() == 0) {
        last = atomic_add_sys(&words->arrived, u64(1)) + 1 == blocks_of_grid();
        if (last) st_relaxed_sys(&words->arrived, u64(0));
    }
    return __syncthreads_or(last) != 0;
}

// All threads of all blocks of the grid meet.
__device__ inline bool meet_blocks(const DeviceTeam& team, u32 counter) {
    CounterWords* words = counter_words(team, counter);
    const u64 turn = ld_relaxed_sys(&words->turn);  // before this block has come: nobody has turned it yet
    if (is_last_block(words)) {
        if (thread_number() == 0) st_release_sys(&words->turn, turn + 1);
        return true;
    }
    const Awaited what{counter, kGridBarrier, team.team.rank, turn + 1, 0};
    const bool ok = thread_number() != 0 || wait_for_word(team, &words->turn, what);
    return __syncthreads_or(!ok) == 0;
}

// All threads of a block put `nbytes` to every rank, `step` bytes further on in the source for each, to this rank's place
// there. The ranks meet before, when what was there has been used, and after.
__device__ inline bool put_to_all(u64 handle, DeviceFunction function, u64 dest, u64 source, u64 nbytes, u64 step) {
    const View v = view(handle);
    if (v.size == 0 || !meet_ranks(*v.team, 0xffffffffu)) return false;
    bool ok = true;
    for (int j = 0; j < v.size; ++j) {
        const int peer = (v.rank + j) % v.size;
        ok &= put(view(handle, peer), function, dest + v.rank * nbytes, source + peer * step, nbytes, peer, this_block());
    }
    return meet_ranks(*v.team, 0xffffffffu) && ok;
}

// All threads of a block fold this rank's shard of all ranks' arrays, in rank order, and store it in all of them.
template <class T>
__device__ bool fold_for_all(u64 handle, u64 array, u64 count) {
    __shared__ char* at[kMaxRanks];
    const View v = view(handle);
    if (v.size == 0 || !meet_ranks(*v.team, 0xffffffffu)) return false;
    const u64 nbytes = count * sizeof(T), packs = packs_in(nbytes), each = (packs + v.size - 1) / v.size;
    const u64 first = smaller(each * v.rank, packs), end = smaller(first + each, packs);
    for (int rank = int(thread_number()); rank < v.size; rank += int(threads_of_block()))
        at[rank] = at_peer(v, kAllreduce, array, nbytes, rank);
    __syncthreads();
    bool ok = true;
    for (int rank = 0; rank < v.size; ++rank) ok &= at[rank] != nullptr;
    for (u64 i = first + thread_number(); ok && i < end; i += threads_of_block()) {
        const Pack pack = fold_loaded<T, Sum>(v.size, [&](int rank) { return get_pack(at[rank], i, nbytes); });
        for (int rank = 0; rank < v.size; ++rank) put_pack(at[rank], i, nbytes, pack);
    }
    return meet_ranks(*v.team, 0xffffffffu) && ok;
}
