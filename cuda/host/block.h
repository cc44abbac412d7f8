// The threads of one block, and the scheduler that runs them in turns on one OS thread.
#pragma once

namespace emulator {

enum class State : unsigned char { ready, at_barrier, at_group, at_warp, done };

struct Thread {
    Fiber fiber;
    dim3 index;
    u32 rank = 0;  // within the block
    State state = State::done;
    u32 group = 0;  // the group that it met last, or waits for (barrier.h)
    // A warp operation in flight (warp.h): its lanes, the lane that this one reads, what it offers and takes.
    u32 mask = 0, wanted = 0, votes = 0;
    u64 offered = 0, taken = 0;
    bool orders = false;    // __syncwarp(): memory accesses too
    bool compares = false;  // __match_any_sync(): votes are the lanes that offer the same
    // For ThreadSanitizer, which does not model fences (ordering.h): whether the thread has passed one, and what it
    // polled last. A fence covers neither what other threads have stored and a barrier brings afterwards, nor payload
    // that this thread stores later: both need another fence.
    bool fenced = false;
    const void* polled = nullptr;
};

struct Warp {
    u32 barriers = 0;       // completed __syncwarp()
    u32 meetings[32] = {};  // completed operations, by the lowest lane of the mask
};

struct Group {  // warps that meet by a barrier of their own
    u32 waiting = 0, voted = 0, yes = 0, barriers = 0;
};

constexpr u32 kMaxThreads = 1024;
constexpr double kYieldS = 200e-6;  // of no progress, before a block sleeps between two passes
constexpr long kPauseNs = 50'000;
constexpr u32 kMaxGroups = 16;  // groups of a block; 0 is not used

struct Grid;  // grid.h
bool failed(const Grid& grid);
void fail(Grid& grid, u32 block, const char* text);

class Block {
  public:
    Block(Grid& grid, const Launch& how, u32 index, Thread* threads, void* shared);
    void run();

    Grid& grid;
    const Launch& how;
    const dim3 index, dimensions, grid_dimensions;
    void* const shared;               // dynamic shared memory
    std::unique_ptr<StoreBuffer> buffer;  // only in hostile mode
    Thread* running = nullptr;
    Thread* const threads;
    Warp warps[kMaxThreads / 32];
    bool progress = true;  // some thread got further than a poll
    bool lets_next = false;  // let_next_begin() has been called

    void leave();                      // lets other threads run
    void finish(Thread& thread);       // the kernel's function returned
    u32 sync(bool vote, bool& every);  // __syncthreads: how many voted yes, and whether all did
    u32 sync_group(bool vote, u32 group, u32 count);  // the same among `count` threads
    bool meet(Thread& thread);         // a warp operation: true if all lanes have come (warp.h)
    void touch();                      // called by each access to a signal: other threads may run here
    Origin origin() const;
    void give_up(const char* text);    // does not return
    Fiber& scheduler() { return scheduler_; }

  private:
    u32 alike(u32 first, u32 lanes, u32 mask, u64 value) const;  // warp.h
    void pass();
    void idle();
    void release_barrier();
    void release_group(u32 id);
    void report(const char* what);

    Fiber scheduler_;
    u32 live_, waiting_ = 0, arrived_ = 0, yes_ = 0, voted_ = 0;
    u32 barriers_ = 0;
    Group groups_[kMaxGroups];
    Random random_;
    bool idle_ = false;  // no pass since `last_progress_` got further
    u32 touches_ = 0;
    double last_progress_ = 0;
    u32 order_[kMaxThreads];
};

// The block that this OS thread runs. initial-exec: one instruction instead of a call, for eight bytes.
inline thread_local Block* current = nullptr;

inline double now_s() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

inline Block::Block(Grid& grid, const Launch& how, u32 index, Thread* threads, void* shared)
    : grid(grid), how(how), index(index, 0, 0), dimensions(how.block), grid_dimensions(how.grid),
      shared(shared), threads(threads), live_(how.block), random_(how.seed ^ (u64(index) << 32)) {
    for (u32 i = 0; i < how.block; ++i) order_[i] = i;
    if (how.hostile && !kRaceDetector) buffer.reset(new StoreBuffer(random_.next()));
    scheduler_.tsan = tsan_current();
}

EMULATOR_UNSEEN inline void Block::run() {
    while (live_ > 0 && !failed(grid)) {
        progress = false;
        pass();
        if (buffer) buffer->tick();
        if (progress) {
            idle_ = false;
        } else if (live_ > 0) {
            idle();
        }
    }
    while (buffer && !buffer->empty()) {
        buffer->tick();
        sched_yield();
    }
}

EMULATOR_UNSEEN inline void Block::pass() {
    const u32 count = dimensions.x;
    for (u32 i = count; how.seed != 0 && i > 1; --i) {
        const u32 other = random_.below(i), last = order_[i - 1];
        order_[i - 1] = order_[other];
        order_[other] = last;
    }
    for (u32 i = 0; i < count; ++i) {
        Thread& thread = threads[order_[i]];
        if (thread.state != State::ready) continue;
        running = &thread;
        switch_fiber(scheduler_, thread.fiber);
    }
}

// No thread got further. Ranks may outnumber the cores, so the rank that this one waits for may need its core, and gets it.
// After a while this one sleeps: where another process computes on its core, sched_yield() takes milliseconds
// (Linux 6.18: 6 ms beside one such process), so a kernel of many steps would take seconds.
EMULATOR_UNSEEN inline void Block::idle() {
    if (!idle_) last_progress_ = now_s();
    idle_ = true;
    u32 ready = 0;
    for (u32 i = 0; i < dimensions.x; ++i) ready += threads[i].state == State::ready;
    if (ready == 0) return report("deadlock");
    const double waited_s = now_s() - last_progress_;
    if (waited_s < kYieldS) {
        sched_yield();
    } else {
        const timespec pause{0, kPauseNs};
        nanosleep(&pause, nullptr);
    }
    if (waited_s > how.watchdog_s) report("stuck");
}

EMULATOR_UNSEEN inline void Block::report(const char* what) {
    u32 count[5] = {};
    for (u32 i = 0; i < dimensions.x; ++i) ++count[static_cast<int>(threads[i].state)];
    char text[200];
    snprintf(text, sizeof text,
             "%s: %u threads poll, %u wait at __syncthreads, %u at a group's barrier, %u at a warp operation, %u are done",
             what, count[0], count[1], count[2], count[3], count[4]);
    fail(grid, index.x, text);
}

EMULATOR_UNSEEN inline void Block::leave() { switch_fiber(running->fiber, scheduler_); }

EMULATOR_UNSEEN inline void Block::give_up(const char* text) {
    fail(grid, index.x, text);
    for (;;) leave();
}

// A seeded run switches here at random. Any run does so after many accesses, so that a loop which polls
// without spin_hint() ends too.
EMULATOR_UNSEEN inline void Block::touch() {
    const bool fuzz = how.seed != 0 && random_.below(4) == 0;
    if (fuzz || ++touches_ % 1024 == 0) leave();
}

EMULATOR_UNSEEN inline Origin Block::origin() const {
    const u32 warp = running->rank / 32;
    return Origin{running->rank, warp, warps[warp].barriers, barriers_, running->group};
}

EMULATOR_UNSEEN inline void Block::finish(Thread& thread) {
    thread.state = State::done;
    --live_;
    progress = true;
    if (waiting_ > 0 && waiting_ == live_) release_barrier();
    const u32 first = thread.rank / 32 * 32;
    for (u32 i = first; i < first + 32 && i < dimensions.x; ++i)
        if (threads[i].state == State::at_warp) meet(threads[i]);
}

EMULATOR_UNSEEN inline const dim3& thread_index() { return current->running->index; }
EMULATOR_UNSEEN inline const dim3& block_index() { return current->index; }
EMULATOR_UNSEEN inline const dim3& block_dimensions() { return current->dimensions; }
EMULATOR_UNSEEN inline const dim3& grid_dimensions() { return current->grid_dimensions; }

}  // namespace emulator
