// Runs CUDA C++ kernels on the CPU, so that they can be tested, debugged and sanitized without a GPU.
//
// A block is an operating system thread; each CUDA thread is a fiber (a stack of its own) on it; all blocks
// of a grid are alive at once, as co-resident blocks are on a GPU. A fiber runs until it waits: at a barrier,
// at a warp operation, or in spin_hint(). Then the block's scheduler resumes another one.
//
//   sanitizer.h   calls for ThreadSanitizer and AddressSanitizer
//   early.h       launches that begin before the previous kernel has ended
//   fiber.h       a stack, and the switch to another one
//   hostile.h     a memory system that delays and reorders stores
//   block.h       the threads of a block and their scheduler
//   barrier.h     __syncthreads() and its voting forms, barriers of groups of warps
//   warp.h        shuffles, votes, __syncwarp()
//   ordering.h    the host arm of signal.cuh
//   intrinsics.h  atomics, bit counting, vector types
//   pool.h        threads and stacks, kept from launch to launch
//   grid.h        a launch
//
// signal.cuh includes this file, after its types. What the emulator cannot show: PTX scopes (a .gpu where
// .sys is needed), caches, and what a GPU would really reorder; hostile.h and ThreadSanitizer stand in.
// The watchdog looks between two fibers, so it does not see a loop that neither polls nor ends.
#pragma once

#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))  // a word of g++'s own headers: include them before
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(nbytes) __attribute__((aligned(nbytes)))
// One copy per block, since a block is an OS thread. It starts with what the last launch left there.
#define __shared__ static thread_local

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
struct uint3 { unsigned x, y, z; };

namespace emulator {
struct Launched;  // early.h
}

// How to run a kernel. Twin: Launch of pyncclx/backends/host/kernels.py.
struct Launch {
    u32 grid, block;    // number of blocks, and of threads in each
    u32 shared_nbytes;  // dynamic shared memory of a block
    u32 hostile;        // not 0: delay and reorder stores to peers (hostile.h)
    u64 seed;           // not 0: resume the fibers in an order drawn from (seed, block)
    double watchdog_s;  // a block without progress for this long is reported as stuck
    emulator::Launched* launched = nullptr;        // what the next launch of the stream, if it is early, sees of this one
    const emulator::Launched* previous = nullptr;  // the previous launch, which may still run, if this one is early
};

#include "host/sanitizer.h"
#include "host/early.h"
#include "host/fiber.h"
#include "host/hostile.h"
#include "host/block.h"
#include "host/barrier.h"
#include "host/warp.h"
#include "host/ordering.h"
#include "host/intrinsics.h"
#include "host/pool.h"
#include "host/grid.h"

#define threadIdx (emulator::thread_index())
#define blockIdx (emulator::block_index())
#define blockDim (emulator::block_dimensions())
#define gridDim (emulator::grid_dimensions())
#define warpSize 32

#define EMULATOR_EXPORT extern "C" __attribute__((visibility("default")))

// Defines `int symbol(const Launch*, const void* const* args)`, which runs the kernel that the other arguments name
// (it may contain commas) and returns 0, or 1 when it failed; and symbol_parameters(), the sizes of what it takes.
#define EMULATE(symbol, ...) \
    EMULATOR_EXPORT int symbol(const Launch* how, const void* const* args) { \
        return emulator::launch(#__VA_ARGS__, &__VA_ARGS__, *how, args); \
    } \
    EMULATOR_EXPORT const char* symbol##_parameters() { return emulator::parameters(&__VA_ARGS__); }

// Why the calling thread's last launch failed.
EMULATOR_EXPORT __attribute__((weak)) const char* emulator_error() { return emulator::last_error; }

// Releases the threads and stacks that this library keeps for the calling thread; the next launch makes them again.
EMULATOR_EXPORT __attribute__((weak)) void emulator_release() {
    emulator::workers().release();
    emulator::storage().release();
}
