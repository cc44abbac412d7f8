// __syncthreads() and its voting forms, and barriers of groups of warps.
#pragma once

namespace emulator {

EMULATOR_UNSEEN inline u32 Block::sync(bool vote, bool& every) {
    // ThreadSanitizer's address for this barrier. Two addresses alternate: with one, what a fast thread does before the
    // next barrier would seem to be ordered before what a slow thread does after this one.
    void* edge = reinterpret_cast<char*>(&barriers_) + (barriers_ & 1);
    tsan_release(edge);
    ++waiting_;
    voted_ += vote;
    progress = true;
    running->state = State::at_barrier;
    if (waiting_ == live_) {
        release_barrier();
    } else {
        leave();
    }
    tsan_acquire(edge);
    running->fenced = false;
    every = yes_ == arrived_;
    return yes_;
}

// Threads that have returned do not count, as on a GPU.
EMULATOR_UNSEEN inline void Block::release_barrier() {
    for (u32 i = 0; i < dimensions.x; ++i)
        if (threads[i].state == State::at_barrier) threads[i].state = State::ready;
    arrived_ = waiting_;
    yes_ = voted_;
    waiting_ = voted_ = 0;
    ++barriers_;
}

EMULATOR_UNSEEN inline u32 Block::sync_group(bool vote, u32 id, u32 count) {
    if (id == 0 || id >= kMaxGroups || count % 32 != 0) give_up("a group is a number from 1 to 15, and whole warps");
    Group& group = groups_[id];
    void* edge = reinterpret_cast<char*>(&group.barriers) + (group.barriers & 1);
    tsan_release(edge);
    ++group.waiting;
    group.voted += vote;
    progress = true;
    running->group = id;
    running->state = State::at_group;
    if (group.waiting == count) {
        release_group(id);
    } else {
        leave();
    }
    tsan_acquire(edge);
    running->fenced = false;
    return group.yes;
}

EMULATOR_UNSEEN inline void Block::release_group(u32 id) {
    for (u32 i = 0; i < dimensions.x; ++i)
        if (threads[i].state == State::at_group && threads[i].group == id) threads[i].state = State::ready;
    if (buffer) buffer->order(id, [&](u32 thread) { return threads[thread].group == id; });
    Group& group = groups_[id];
    group.yes = group.voted;
    group.waiting = group.voted = 0;
    ++group.barriers;
}

EMULATOR_UNSEEN inline u32 sync_group(bool vote, u32 id, u32 count) { return current->sync_group(vote, id, count); }
EMULATOR_UNSEEN inline u32 sync_block(bool vote, bool& every) { return current->sync(vote, every); }

}  // namespace emulator

inline void __syncthreads() {
    bool every;
    emulator::sync_block(false, every);
}
inline int __syncthreads_count(int predicate) {
    bool every;
    return static_cast<int>(emulator::sync_block(predicate != 0, every));
}
inline int __syncthreads_or(int predicate) { return __syncthreads_count(predicate) > 0; }
inline int __syncthreads_and(int predicate) {
    bool every;
    emulator::sync_block(predicate != 0, every);
    return every;
}

inline bool any_of_group(bool vote, u32 group, u32 threads) { return emulator::sync_group(vote, group, threads) > 0; }
