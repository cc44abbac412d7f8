// A block copies memory to a peer by bulk copies: shared memory is a ring of stages, one thread keeps it moving.
//
// A few bytes in flight for each block are enough, since the hardware needs no thread to wait for a load. Measured by
// itself it moves a tenth more than stores of all threads do when all ranks send to all at once.
#pragma once
#include "vector.cuh"

constexpr u32 kStages = 5;
constexpr u32 kStageNbytes = 8192;
constexpr u32 kLoadsAhead = 2;  // stages being loaded; the others are being stored

struct BulkStages {  // of one block, in shared memory
    alignas(128) char stage[kStages][kStageNbytes];
    u64 loaded[kStages];
};

struct BulkCopier {
    BulkStages& stages;
    u64 pieces = 0;  // that have gone through the stages; only the first thread counts

    __device__ explicit BulkCopier(BulkStages& stages) : stages(stages) {
        if (threadIdx.x != 0) return;
        for (u64& barrier : stages.loaded) bulk_barrier_init(&barrier);
    }

    // Whether both lie so that bulk copies can move them.
    __device__ static bool can(const char* to, const char* from) { return (u64(to) | u64(from)) % kPackNbytes == 0; }

    // All threads call it, and meet afterwards. The first thread's next release covers what was stored.
    __device__ void copy(char* to, const char* from, u64 nbytes) {
        const u64 whole = nbytes / kPackNbytes * kPackNbytes;
        if (threadIdx.x != 0) return;
        if (whole < nbytes) put_pack(to + whole, 0, nbytes - whole, get_pack(from + whole, 0, nbytes - whole));
        const u64 count = (whole + kStageNbytes - 1) / kStageNbytes;
        fence_bulk();
        for (u64 i = 0; i < count + kLoadsAhead; ++i) {
            if (i < count) load(i, from, whole);
            if (i >= kLoadsAhead) store(i - kLoadsAhead, to, whole);
        }
        pieces += count;
        bulk_await_stored();
    }

  private:
    __device__ static u32 piece_nbytes(u64 i, u64 nbytes) { return u32(smaller(kStageNbytes, nbytes - i * kStageNbytes)); }

    __device__ void load(u64 i, const char* from, u64 nbytes) {
        const u32 stage = u32((pieces + i) % kStages);
        bulk_await_read<kStages - kLoadsAhead - 1>();  // the piece that was there has left
        bulk_expect(&stages.loaded[stage], piece_nbytes(i, nbytes));
        bulk_load(stages.stage[stage], from + i * kStageNbytes, piece_nbytes(i, nbytes), &stages.loaded[stage]);
    }

    __device__ void store(u64 i, char* to, u64 nbytes) {
        const u32 stage = u32((pieces + i) % kStages);
        bulk_await(&stages.loaded[stage], u32((pieces + i) / kStages % 2));
        bulk_store(to + i * kStageNbytes, stages.stage[stage], piece_nbytes(i, nbytes));
        bulk_commit();
    }
};
