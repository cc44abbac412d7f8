// A launch: all blocks run at once, each on an OS thread; the caller's thread runs block 0.
#pragma once

namespace emulator {

struct Grid {
    const char* name;  // the kernel's name, for messages
    const Launch& how;
    void (*kernel)();
    void (*call)(void (*kernel)(), const void* args);  // calls the kernel by its true type
    const void* args;  // a tuple of them
    std::atomic<bool> failed{false};
    char message[400] = "";  // the first reason for a failure
    // Addresses for ThreadSanitizer: a kernel's threads come after its launch and before its return. Two, for
    // with one a thread that ends early would seem to come before a thread that starts late.
    u64 begun = 0, ended = 0;
};

inline thread_local char last_error[400] = "";

inline bool failed(const Grid& grid) { return grid.failed.load(std::memory_order_relaxed); }

EMULATOR_UNSEEN inline void fail(Grid& grid, u32 block, const char* text) {
    if (grid.failed.exchange(true)) return;
    snprintf(grid.message, sizeof grid.message, "emulated kernel %s, block %u: %s", grid.name, block, text);
    tsan_release(&grid.ended);
}

// Where a fiber starts. It runs the kernel, and is not resumed after finish().
EMULATOR_UNSEEN inline void run_thread() {
    Block& block = *current;
    Thread& thread = *block.running;
    asan_arrive(nullptr, &block.scheduler().bottom, &block.scheduler().nbytes);
    tsan_acquire(&block.grid.begun);
    block.grid.call(block.grid.kernel, block.grid.args);
    tsan_release(&block.grid.ended);
    if (block.how.launched != nullptr) block.how.launched->release();
    block.finish(thread);
    block.leave();
}

// What the calling thread keeps from launch to launch: resources to run a block, and threads that run other blocks.
inline Storage& storage() {
    static thread_local Storage storage;
    return storage;
}

inline Workers& workers() {
    static thread_local Workers workers;
    return workers;
}

EMULATOR_UNSEEN inline void run_block(Grid& grid, u32 index) {
    const Launch& how = grid.how;
    Thread* threads = storage().threads(how.block);
    for (u32 i = 0; i < how.block; ++i) {
        threads[i].index = dim3(i, 0, 0);
        threads[i].rank = i;
        threads[i].state = State::ready;
        threads[i].fenced = false;
        threads[i].polled = nullptr;
        prepare(threads[i].fiber, run_thread);
    }
    Block block(grid, how, index, threads, storage().shared(how.shared_nbytes));
    current = &block;
    tsan_release(&grid.begun);
    block.run();
    tsan_acquire(&grid.ended);
    current = nullptr;
    if (how.launched == nullptr) return;
    if (!block.lets_next) how.launched->let();
    how.launched->leave();
}

inline void run_blocks(Grid& grid) {
    Workers& others = workers();
    for (u32 block = 1; block < grid.how.grid; ++block) others[block - 1].start(grid, block);
    run_block(grid, 0);
    for (u32 block = 1; block < grid.how.grid; ++block) others[block - 1].wait();
}

inline int run_grid(Grid& grid) {
    const Launch& how = grid.how;
    if (how.grid == 0 || how.block == 0 || how.block > kMaxThreads) {
        snprintf(last_error, sizeof last_error, "cannot launch %u blocks of %u threads", how.grid, how.block);
        return 1;
    }
    run_blocks(grid);
    if (!failed(grid)) return 0;
    memcpy(last_error, grid.message, sizeof last_error);
    fprintf(stderr, "%s\n", last_error);
    return 1;
}

// Like a launch by the driver: `args` has a pointer to each argument.
template <class... Args, size_t... kIndex>
int launch(const char* name, void (*kernel)(Args...), const Launch& how, const void* const* args,
           std::index_sequence<kIndex...>) {
    static_assert((std::is_trivially_copyable<Args>::value && ...), "a kernel takes numbers, pointers and structures");
    std::tuple<Args...> copy;  // the caller's may be aligned less
    (memcpy(&std::get<kIndex>(copy), args[kIndex], sizeof(Args)), ...);
    auto call = [](void (*function)(), const void* parameters) {
        std::apply(reinterpret_cast<void (*)(Args...)>(function), *static_cast<const std::tuple<Args...>*>(parameters));
    };
    Grid grid{name, how, reinterpret_cast<void (*)()>(kernel), call, &copy};
    return run_grid(grid);
}

template <class... Args>
int launch(const char* name, void (*kernel)(Args...), const Launch& how, const void* const* args) {
    return launch(name, kernel, how, args, std::index_sequence_for<Args...>{});
}

// The size of each parameter, as text.
template <class... Args>
const char* parameters(void (*)(Args...)) {
    static const std::string sizes = ((std::to_string(sizeof(Args)) + " ") + ... + "");
    return sizes.c_str();
}

}  // namespace emulator
