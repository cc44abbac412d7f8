// Shuffles, votes and __syncwarp(): the lanes of a mask meet, and each takes a value from another lane.
#pragma once

namespace emulator {

// What a lane reads from a lane that takes no part; on a GPU that is undefined.
constexpr u64 kUndefined = 0xBADBADBADBADBADBull;

// The lanes of the mask that offer a value.
EMULATOR_UNSEEN inline u32 Block::alike(u32 first, u32 lanes, u32 mask, u64 value) const {
    u32 same = 0;
    for (u32 lane = 0; lane < lanes; ++lane) {
        const Thread& other = threads[first + lane];
        if ((mask >> lane & 1) && other.state != State::done && other.offered == value) same |= 1u << lane;
    }
    return same;
}

// Completes the operation that `thread` waits in, if all lanes of its mask (but those that have returned)
// wait in it too. The last to arrive does the exchange for all lanes, so that no lane overwrites what a
// slower one has yet to read.
EMULATOR_UNSEEN inline bool Block::meet(Thread& thread) {
    const u32 first = thread.rank / 32 * 32, mask = thread.mask;
    const u32 lanes = dimensions.x - first < 32 ? dimensions.x - first : 32;
    u32 votes = 0;
    for (u32 lane = lanes; lane-- > 0;) {
        const Thread& other = threads[first + lane];
        if (!(mask >> lane & 1) || other.state == State::done) continue;
        if (other.state != State::at_warp || other.mask != mask) return false;
        if (other.offered != 0) votes |= 1u << lane;
    }
    for (u32 lane = 0; lane < lanes; ++lane) {
        Thread& other = threads[first + lane];
        if (!(mask >> lane & 1) || other.state != State::at_warp) continue;
        const u32 wanted = other.wanted;
        const bool named = wanted < lanes && (mask >> wanted & 1);
        const bool there = named && threads[first + wanted].state != State::done;
        other.taken = there ? threads[first + wanted].offered : kUndefined;
        other.votes = other.compares ? alike(first, lanes, mask, other.offered) : votes;
    }
    for (u32 lane = 0; lane < lanes; ++lane) {
        State& state = threads[first + lane].state;
        if ((mask >> lane & 1) && state == State::at_warp) state = State::ready;
    }
    ++warps[first / 32].meetings[__builtin_ctz(mask)];
    warps[first / 32].barriers += thread.orders;
    progress = true;
    return true;
}

// Gives `offered` to the lanes of the mask and takes what lane `wanted` gives; `orders`: memory accesses too.
EMULATOR_UNSEEN inline u64 meet_warp(u32 mask, u64 offered, u32 wanted, bool orders, u32* votes, bool compares = false) {
    Block& block = *current;
    Thread& self = *block.running;
    if (!(mask >> (self.rank % 32) & 1)) block.give_up("a lane is not in the mask of its warp operation");
    Warp& warp = block.warps[self.rank / 32];
    const u32 leader = static_cast<u32>(__builtin_ctz(mask));
    u32& meetings = warp.meetings[leader];
    void* edge = reinterpret_cast<char*>(&meetings) + (meetings & 1);  // two in turn, as in Block::sync
    if (orders) tsan_release(edge);
    self.mask = mask;
    self.offered = offered;
    self.wanted = wanted;
    self.orders = orders;
    self.compares = compares;
    self.state = State::at_warp;
    block.progress = true;
    if (!block.meet(self)) block.leave();
    if (orders) {
        tsan_acquire(edge);
        self.fenced = false;
    }
    if (votes) *votes = self.votes;
    return self.taken;
}

EMULATOR_UNSEEN inline u32 lane() { return current->running->rank % 32; }

EMULATOR_UNSEEN inline u32 live_lanes() {
    const Block& block = *current;
    const u32 first = block.running->rank / 32 * 32;
    u32 mask = 0;
    for (u32 i = 0; i < 32 && first + i < block.dimensions.x; ++i)
        if (block.threads[first + i].state != State::done) mask |= 1u << i;
    return mask;
}

template <class T>
T shuffle(u32 mask, T value, u32 wanted) {
    static_assert(std::is_trivially_copyable<T>::value && sizeof(T) <= 8, "a shuffle moves 1 to 8 bytes");
    u64 word = 0;
    memcpy(&word, &value, sizeof(T));
    word = meet_warp(mask, word, wanted, false, nullptr);
    memcpy(&value, &word, sizeof(T));
    return value;
}

template <class T>
u32 match(u32 mask, T value) {
    static_assert(std::is_trivially_copyable<T>::value && sizeof(T) <= 8, "values of 1 to 8 bytes are compared");
    u64 word = 0;
    memcpy(&word, &value, sizeof(T));
    u32 votes = 0;
    meet_warp(mask, word, lane(), false, &votes, true);
    return votes;
}

inline u32 vote(u32 mask, bool predicate) {
    u32 votes = 0;
    meet_warp(mask, predicate, lane(), false, &votes);
    return votes;
}

}  // namespace emulator

// `width` splits the warp into segments; a lane whose source lies outside its own keeps its value.
template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
    const u32 first = emulator::lane() & ~static_cast<u32>(width - 1);
    return emulator::shuffle(mask, value, first | (static_cast<u32>(source) & static_cast<u32>(width - 1)));
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
    const u32 lane = emulator::lane(), within = lane & static_cast<u32>(width - 1);
    return emulator::shuffle(mask, value, within < delta ? lane : lane - delta);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
    const u32 lane = emulator::lane(), within = lane & static_cast<u32>(width - 1);
    return emulator::shuffle(mask, value, within + delta >= static_cast<u32>(width) ? lane : lane + delta);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32) {
    const u32 lane = emulator::lane(), wanted = lane ^ static_cast<u32>(bits);
    return emulator::shuffle(mask, value, wanted > (lane | static_cast<u32>(width - 1)) ? lane : wanted);
}

inline unsigned __ballot_sync(unsigned mask, int predicate) { return emulator::vote(mask, predicate != 0); }
inline int __any_sync(unsigned mask, int predicate) { return emulator::vote(mask, predicate != 0) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return emulator::vote(mask, predicate == 0) == 0; }
template <class T>
unsigned __match_any_sync(unsigned mask, T value) { return emulator::match(mask, value); }
// Of a whole warp.
template <class Combine>
unsigned emulator_reduce(unsigned mask, unsigned value, Combine combine) {
    for (int bits = 1; bits < 32; bits *= 2) value = combine(value, __shfl_xor_sync(mask, value, bits));
    return value;
}
inline unsigned __reduce_add_sync(unsigned mask, unsigned value) {
    return emulator_reduce(mask, value, [](unsigned a, unsigned b) { return a + b; });
}
inline unsigned __reduce_max_sync(unsigned mask, unsigned value) {
    return emulator_reduce(mask, value, [](unsigned a, unsigned b) { return a < b ? b : a; });
}
inline unsigned __reduce_or_sync(unsigned mask, unsigned value) {
    return emulator_reduce(mask, value, [](unsigned a, unsigned b) { return a | b; });
}
inline unsigned __activemask() { return emulator::live_lanes(); }

// The only warp operation that orders memory accesses among its lanes.
inline void __syncwarp(unsigned mask = 0xFFFFFFFFu) {
    emulator::meet_warp(mask, 0, emulator::lane(), true, nullptr);
}
