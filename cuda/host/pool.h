// What is kept between launches: OS threads that wait for a block to run, and the stacks of a thread's fibers.
#pragma once

namespace emulator {

void run_block(Grid& grid, u32 index);  // grid.h

// What an OS thread needs to run a block.
class Storage {
  public:
    ~Storage() { release(); }

    Thread* threads(u32 count) {
        if (count > count_) grow(count);
        return threads_.get();
    }

    void* shared(u32 nbytes) {
        if (nbytes > shared_.size() * sizeof(Pack)) shared_.resize(nbytes / sizeof(Pack) + 1);
        return shared_.data();
    }

    void release() {
        for (u32 i = 0; i < count_; ++i) tsan_destroy(threads_[i].fiber.tsan);
        if (count_ > 0) munmap(stacks_, count_ * kSpacing);
        if (has_guards_) guarded().fetch_sub(count_, std::memory_order_relaxed);
        count_ = 0;
        has_guards_ = false;
    }

  private:
    // Memory without access below each stack turns an overflow into a fault, instead of into another
    // thread's wrong result. 64 KiB is the largest page of any Linux.
    static constexpr size_t kGuard = 65536, kSpacing = kStackNbytes + kGuard;
    // Stacks of a library that have guards. A stack and its guard are two mappings, and Linux allows a process 65,530:
    // with many libraries, and many threads that launch, all stacks would have more.
    static constexpr u32 kMostGuarded = 256;

    static std::atomic<u32>& guarded() {
        static std::atomic<u32> count{0};
        return count;
    }

    void grow(u32 count) {
        release();
        has_guards_ = guarded().fetch_add(count, std::memory_order_relaxed) + count <= kMostGuarded;
        if (!has_guards_) guarded().fetch_sub(count, std::memory_order_relaxed);
        const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, access = PROT_READ | PROT_WRITE;
        void* memory = mmap(nullptr, count * kSpacing, has_guards_ ? PROT_NONE : access, flags, -1, 0);
        if (memory == MAP_FAILED) throw std::bad_alloc();
        stacks_ = static_cast<char*>(memory);
        threads_.reset(new Thread[count]);
        count_ = count;
        for (u32 i = 0; i < count; ++i) {
            char* bottom = stacks_ + i * kSpacing + kGuard;
            if (has_guards_ && mprotect(bottom, kStackNbytes, access) != 0) throw std::bad_alloc();
            threads_[i].fiber.bottom = bottom;
            // Stacks that all begin at a multiple of a large power of two would share few sets of the cache.
            threads_[i].fiber.nbytes = kStackNbytes - i % 16 * 192;
            threads_[i].fiber.tsan = tsan_create();
        }
    }

    char* stacks_ = nullptr;
    u32 count_ = 0;
    bool has_guards_ = false;
    std::unique_ptr<Thread[]> threads_;
    std::vector<Pack> shared_;
};

// An OS thread that runs one block at a time.
class Worker {
  public:
    Worker() : thread_([this] { work(); }) {}

    ~Worker() {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            quit_ = true;
            changed_.notify_one();
        }
        thread_.join();
    }

    void start(Grid& grid, u32 block) {
        std::lock_guard<std::mutex> lock(mutex_);
        grid_ = &grid;
        block_ = block;
        changed_.notify_one();
    }

    void wait() {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [this] { return grid_ == nullptr; });
    }

  private:
    void work() {
        std::unique_lock<std::mutex> lock(mutex_);
        for (;;) {
            changed_.wait(lock, [this] { return grid_ != nullptr || quit_; });
            if (quit_) return;
            lock.unlock();
            run_block(*grid_, block_);
            lock.lock();
            grid_ = nullptr;
            changed_.notify_one();
        }
    }

    std::mutex mutex_;
    std::condition_variable changed_;  // one side waits at a time
    Grid* grid_ = nullptr;
    u32 block_ = 0;
    bool quit_ = false;
    std::thread thread_;  // last: it uses the others
};

// The workers of one launching thread. Not shared among launching threads: tests run a rank in each, and the
// ranks' kernels must have nothing in common that would look like synchronisation, or like a race.
class Workers {
  public:
    ~Workers() { forget_parents(); }

    Worker& operator[](u32 i) {
        forget_parents();
        while (workers_.size() <= i) workers_.emplace_back(new Worker);
        return *workers_[i];
    }

    void release() {
        forget_parents();
        workers_.clear();
    }

  private:
    // After a fork the objects are here, but their threads have stayed with the parent.
    void forget_parents() {
        if (process_ == getpid()) return;
        for (auto& worker : workers_) worker.release();
        workers_.clear();
        process_ = getpid();
    }

    std::vector<std::unique_ptr<Worker>> workers_;
    pid_t process_ = getpid();
};

}  // namespace emulator
