// What test_device_api.py runs, as a program's author would write it.
#include "pyncclx.cuh"

__device__ int put(int who, pyncclx_team team, char* dest, const char* source, u64 nbytes, int peer) {
    if (who == 0) return threadIdx.x != 0 || pyncclx_put_thread(team, dest, source, nbytes, peer);
    if (who == 1) return threadIdx.x >= 32 || pyncclx_put_warp(team, dest, source, nbytes, peer);
    return pyncclx_put_block(team, dest, source, nbytes, peer);
}

__device__ int get(int who, pyncclx_team team, char* dest, const char* source, u64 nbytes, int peer) {
    if (who == 0) return threadIdx.x != 0 || pyncclx_get_thread(team, dest, source, nbytes, peer);
    if (who == 1) return threadIdx.x >= 32 || pyncclx_get_warp(team, dest, source, nbytes, peer);
    return pyncclx_get_block(team, dest, source, nbytes, peer);
}

__device__ int put_signal(int who, pyncclx_team team, char* dest, const char* source, u64 nbytes, int peer, u64 value) {
    if (who == 0) return threadIdx.x != 0 || pyncclx_put_signal_thread(team, dest, source, nbytes, peer, 0, value);
    if (who == 1) return threadIdx.x >= 32 || pyncclx_put_signal_warp(team, dest, source, nbytes, peer, 0, value);
    return pyncclx_put_signal_block(team, dest, source, nbytes, peer, 0, value);
}

// Every rank puts a row into every rank's inbox, and gets back what it has put.
extern "C" __global__ void moves(pyncclx_team team, char* inbox, const char* rows, char* back, long long nbytes,
                                 long long stride, int who, int* failed) {
    const int me = pyncclx_rank(team), size = pyncclx_size(team);
    for (int shift = blockIdx.x; shift < size; shift += gridDim.x) {
        const int peer = (me + shift) % size;
        int ok = put(who, team, inbox + me * stride, rows + shift * stride, nbytes, peer);
        ok &= pyncclx_barrier(team);
        ok &= get(who, team, back + shift * stride, inbox + me * stride, nbytes, peer);
        if (!ok) *failed = 1;
    }
}

__device__ int put_packets(int who, pyncclx_team team, char* slot, const char* source, u64 nbytes, int peer, u32 epoch) {
    if (who == 0) return threadIdx.x != 0 || pyncclx_put_packets_thread(team, slot, source, nbytes, peer, epoch);
    if (who == 1) return threadIdx.x >= 32 || pyncclx_put_packets_warp(team, slot, source, nbytes, peer, epoch);
    return pyncclx_put_packets_block(team, slot, source, nbytes, peer, epoch);
}

__device__ int receive_packets(int who, pyncclx_team team, char* dest, const char* slot, u64 nbytes, u32 epoch) {
    if (who == 0) return threadIdx.x != 0 || pyncclx_receive_packets_thread(team, dest, slot, nbytes, epoch);
    if (who == 1) return threadIdx.x >= 32 || pyncclx_receive_packets_warp(team, dest, slot, nbytes, epoch);
    return pyncclx_receive_packets_block(team, dest, slot, nbytes, epoch);
}

__device__ void copy(int who, char* dest, const char* source, u64 nbytes) {
    if (who == 2) pyncclx_copy_block(dest, source, nbytes);
    else if (who == 1 && threadIdx.x < 32) pyncclx_copy_warp(dest, source, nbytes);
    else if (who == 0 && threadIdx.x == 0) pyncclx_copy_thread(dest, source, nbytes);
}

// Every rank sends every rank a row as packets, `rounds` times, in slots that alternate; what arrived is copied once more.
extern "C" __global__ void packets(pyncclx_team team, char* slots, const char* rows, char* taken, char* copied,
                                   long long nbytes, int rounds, int first, int who, int* failed) {
    const int me = pyncclx_rank(team), size = pyncclx_size(team);
    const long long slot = (nbytes + 15) / 16 * 32;
    int ok = 1;
    for (int round = 0; round < rounds; ++round) {
        const u32 epoch = first + round + 1;
        char* inbox = slots + (epoch & 1) * size * slot;
        for (int peer = 0; peer < size; ++peer)
            ok &= put_packets(who, team, inbox + me * slot, rows + (round * size + peer) * nbytes, nbytes, peer, epoch);
        for (int source = 0; source < size; ++source) {
            char* to = taken + (round * size + source) * nbytes;
            ok &= receive_packets(who, team, to, inbox + source * slot, nbytes, epoch);
            __syncthreads();
            copy(who, copied + (to - taken), to, nbytes);
        }
    }
    if (!ok) *failed = 1;
}

// Collectives of each block, one after the other on the same arrays, with what a kernel of a user's would do between.
extern "C" __global__ void block_collectives(pyncclx_team team, char* gathered, char* exchanged, const char* rows,
                                             long long nbytes, char* copies, int rounds, int* failed) {
    const int size = pyncclx_size(team);
    const long long all = size * nbytes, mine = blockIdx.x * all;
    int ok = 1;
    for (int round = 0; round < rounds; ++round) {
        const char* source = rows + (round * gridDim.x + blockIdx.x) * all;
        char* to = copies + (round * gridDim.x + blockIdx.x) * 2 * all;
        ok &= pyncclx_allgather_block(team, gathered + mine, source, nbytes);
        ok &= pyncclx_alltoall_block(team, exchanged + mine, source, nbytes);
        pyncclx_copy_block(to, gathered + mine, all);
        pyncclx_copy_block(to + all, exchanged + mine, all);
    }
    if (!ok) *failed = 1;
}

template <class T, class Sum>
__device__ void fold(pyncclx_team team, T* array, long long count, int* failed, Sum sum) {
    T* mine = array + blockIdx.x * count;
    for (int round = 0; round < 2; ++round) {
        if (!sum(team, mine, count)) *failed = 1;
        for (int i = threadIdx.x; i < count; i += blockDim.x) mine[i] += T(1);
    }
}

extern "C" __global__ void block_sums(pyncclx_team team, float* f32, double* f64, int* i32, long long* i64,
                                      long long count, int* failed) {
    fold(team, f32, count, failed, [](u64 t, float* a, u64 n) { return pyncclx_allreduce_block_f32(t, a, n); });
    fold(team, f64, count, failed, [](u64 t, double* a, u64 n) { return pyncclx_allreduce_block_f64(t, a, n); });
    fold(team, i32, count, failed, [](u64 t, int* a, u64 n) { return pyncclx_allreduce_block_i32(t, a, n); });
    fold(team, i64, count, failed, [](u64 t, long long* a, u64 n) { return pyncclx_allreduce_block_i64(t, a, n); });
}

// Rows travel round the ring of ranks, one at a time; `first` have done so before.
extern "C" __global__ void ring(pyncclx_team team, char* inbox, const char* rows, char* taken, long long nbytes,
                                int rounds, int first, int who, int* failed) {
    const int me = pyncclx_rank(team), size = pyncclx_size(team);
    const int next = (me + 1) % size, previous = (me + size - 1) % size;
    for (int round = 0; round < rounds; ++round) {
        const u64 turn = first + round;
        int ok = pyncclx_wait_until_block(team, 1, turn);  // the next rank has taken the row before
        ok &= put_signal(who, team, inbox, rows + round * nbytes, nbytes, next, turn + 1);
        ok &= threadIdx.x != 0 || pyncclx_wait_until(team, 0, turn + 1);
        __syncthreads();
        ok &= pyncclx_get_block(team, taken + round * nbytes, inbox, nbytes, me);
        __syncthreads();
        if (threadIdx.x == 0) ok &= pyncclx_signal_set(team, previous, 1, turn + 1);
        if (!ok) *failed = 1;
    }
}

// Every thread of every rank draws tickets from words of rank 0, and adds to a signal of every rank.
extern "C" __global__ void tickets(pyncclx_team team, u64* words, u64* drawn, u64* signal) {
    const int size = pyncclx_size(team), threads = blockDim.x * gridDim.x;
    const int thread = blockIdx.x * blockDim.x + threadIdx.x;
    u32* halves = reinterpret_cast<u32*>(words + 1);
    drawn[thread] = pyncclx_atomic_add_u64(team, words, 1, 0);
    drawn[threads + thread] = pyncclx_atomic_add_u32(team, halves, 1, 0);
    u32 half = 0;
    for (u32 seen; (seen = pyncclx_atomic_cas_u32(team, halves + 1, half, half + 1, 0)) != half; half = seen) {}
    drawn[2 * threads + thread] = half;
    u64 word = 0;
    for (u64 seen; (seen = pyncclx_atomic_cas_u64(team, words + 2, word, word + 1, 0)) != word; word = seen) {}
    drawn[3 * threads + thread] = word;
    for (int peer = 0; peer < size; ++peer) pyncclx_signal_add(team, peer, 2, 1);
    if (pyncclx_wait_until(team, 2, u64(threads) * size)) signal[thread] = pyncclx_signal_read(team, 2);
}

// Blocks of one rank: all write, the last one adds up, all meet and look what the others wrote.
extern "C" __global__ void blocks(pyncclx_team team, int* values, int* sums, int* lasts, int* seen, int rounds) {
    const int block = blockIdx.x, grid = gridDim.x;
    for (int round = 0; round < rounds; ++round) {
        if (threadIdx.x == 0) values[round * grid + block] = (round + 1) * (block + 1);
        if (pyncclx_last_block(team, 0) && threadIdx.x == 0) {
            atomicAdd(lasts + round, 1);
            for (int other = 0; other < grid; ++other) sums[round] += values[round * grid + other];
        }
        if (!pyncclx_grid_barrier(team, 1)) return;
        for (int other = threadIdx.x; other < grid; other += blockDim.x)
            seen[(round * grid + block) * grid + other] = values[round * grid + other];
    }
}

// Ranks of one parity store through pointers and meet, the odd ones twice as often; then all do.
extern "C" __global__ void parities(pyncclx_team team, int* board, int* seen, int rounds) {
    const int me = pyncclx_rank(team), size = pyncclx_size(team);
    const u32 mates = me % 2 ? 0xaaaaaaaau : 0x55555555u;
    int stale = 0;
    for (int round = 1; round <= rounds * (1 + me % 2); ++round) {
        for (int peer = threadIdx.x; peer < size; peer += blockDim.x)
            if (peer % 2 == me % 2)
                reinterpret_cast<int*>(pyncclx_peer_pointer(team, board, peer))[blockIdx.x * 16 + me] = round;
        if (!pyncclx_barrier_among(team, mates)) return;
        for (int peer = me % 2; peer < size; peer += 2) stale |= board[blockIdx.x * 16 + peer] != round;
        if (!pyncclx_barrier_among(team, mates)) return;
    }
    if (!pyncclx_barrier(team)) return;
    seen[blockIdx.x * blockDim.x + threadIdx.x] = 1 + stale;
}

// One thread hands on what it stored itself, by a fence and a plain flag, to a rank that looks at it by an atomic.
extern "C" __global__ void fenced(pyncclx_team team, u64* words, u64* taken) {
    const int me = pyncclx_rank(team), size = pyncclx_size(team), next = (me + 1) % size;
    const u64 value = me + 1000;
    pyncclx_put_thread(team, words, &value, sizeof(value), next);
    pyncclx_quiet();
    pyncclx_atomic_add_u64(team, words + 1, 1, next);
    for (int tries = 0; tries < 1 << 24; ++tries)
        if (pyncclx_atomic_add_u64(team, words + 1, 0, me) == 1) break;
    pyncclx_fence();
    *taken = words[0];
}

extern "C" __global__ void misuse(pyncclx_team team, char* inbox, long long nbytes, int which, int* result) {
    if (threadIdx.x != 0) return;
    const int size = pyncclx_size(team);
    u64 word = 0;
    switch (which) {
        case 0: *result = pyncclx_put_thread(team, inbox, &word, 8, size); break;
        case 1: *result = pyncclx_signal_set(team, -1, 0, 1); break;
        case 2: *result = pyncclx_signal_add(team, 0, 1000, 1); break;
        case 3: *result = pyncclx_last_block(team, 99); break;
        case 4: *result = pyncclx_put_thread(team, &word, &word, 8, 0); break;
        case 5: *result = pyncclx_get_thread(team, &word, inbox, nbytes + (4 << 20), 0); break;
        case 6: *result = int(pyncclx_atomic_add_u64(team, inbox + 4, 1, 0)); break;
        case 7: *result = pyncclx_expect_size(team, size + 1); break;
        case 8: *result = pyncclx_wait_until(team, 64, 0); break;
    }
}

extern "C" __global__ void wait(pyncclx_team team, int which, int* result) {
    if (which == 0) *result = pyncclx_wait_until_block(team, 3, 7);
    if (which == 1) *result = pyncclx_barrier(team);
}

extern "C" __global__ void describe(pyncclx_team team, int* out) {
    out[0] = pyncclx_rank(team);
    out[1] = pyncclx_size(team);
    out[2] = pyncclx_expect_size(team, out[1]);
    out[3] = pyncclx_barrier(team);
    out[4] = pyncclx_signal_set(team, out[0], 0, 1);
}
