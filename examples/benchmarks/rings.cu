// An all-to-all in four ways, to see what each costs; rings.py runs it.
//
//   kStraight  stores to the place in the receiver's array
//   kStores    stores to a ring in the receiver's memory, without flags, from which nothing is taken: what the links carry
//   kFlags     a ring whose places are taken: a fence and a flag after each place that was filled, a flag for each that is free
//   kLines     the same, but every 128 bytes bring their own flag in 8 of them, and no fence is needed
//
// A warp sends to one rank, or takes from one, without meeting others: its stream has rings and counters of its own.
#include "protocol/signal.cuh"

enum Way { kStraight, kStores, kFlags, kLines };

struct Streams {
    const char* send;
    char* recv;
    u64 nbytes;           // of one rank's block
    char* const* rings;   // every rank's memory for rings, zeroed before the first call
    char* const* places;  // and its receive array
    int size, rank;
    u32 depth;            // places of a ring
    u64 before;           // units that each stream has moved by now
    u32* failed;
};

template <int kWay, int kRows>
struct Stream {
    static constexpr bool kTaken = kWay == kFlags || kWay == kLines;
    static constexpr u32 kRow = kWay == kLines ? 30 : 32;  // packs that a warp moves at once
    const Streams& all;
    const u32 lane, jobs, warps;
    const bool sends;
    const int peer;
    u64 index, streams, packs, units;
    Pack* ring;
    u64 *filled, *freed;  // by the sender, in the receiver's memory; and the other way round

    __device__ explicit Stream(const Streams& all)
        : all(all),
          lane(threadIdx.x % 32),
          jobs((all.size - 1) * (kTaken ? 2 : 1)),
          warps(blockDim.x / 32 / jobs),
          sends(threadIdx.x / 32 % jobs < u32(all.size - 1)),
          peer((all.rank + 1 + int(threadIdx.x / 32 % jobs) % (all.size - 1)) % all.size) {
        const u32 warp = threadIdx.x / 32 / jobs, peers = all.size - 1;
        const int holder = sends ? peer : all.rank, source = sends ? all.rank : peer;
        streams = u64(gridDim.x) * warps;
        index = u64(blockIdx.x) * warps + warp;
        packs = all.nbytes / sizeof(Pack);
        units = (packs + streams * kRow * kRows - 1) / (streams * kRow * kRows);
        const u64 at = (source - holder + all.size) % all.size - 1 + index * peers;
        const u64 back = (holder - source + all.size) % all.size - 1 + index * peers;
        filled = reinterpret_cast<u64*>(all.rings[holder]) + 4 * at;
        freed = reinterpret_cast<u64*>(all.rings[source]) + 4 * (streams * peers + back);
        ring = reinterpret_cast<Pack*>(all.rings[holder] + 64 * streams * peers) + at * all.depth * kRows * 32;
    }

    __device__ bool works() const { return threadIdx.x / 32 < jobs * warps; }
    __device__ bool holds() const { return kRow == 32 || lane % 16 != 15; }
    __device__ bool has_flag() const { return lane % 8 == 7; }

    // Which pack of the message this lane has in a row of a unit. Of two lines, lane 7 has 15 packs' last, which both share.
    __device__ u64 pack(u64 unit, int row) const {
        const u32 h = lane % 16, of_lines = lane / 16 * 15 + (h < 7 ? h : h == 7 ? 14 : h - 1);
        return ((unit * streams + index) * kRows + row) * kRow + (kRow == 32 ? lane : of_lines);
    }
    __device__ Pack* slot(u64 unit) const { return ring + (all.before + unit) % all.depth * (kRows * 32); }

    __device__ bool await(const u64* word, u64 least) const {
        bool ok = true;
        for (u32 polls = 0; lane == 0 && ok && ld_acquire_sys(word) < least; ++polls) ok = polls < (1u << 21);
        if (!ok) *all.failed = 1;
        ok = __all_sync(0xffffffffu, ok);
        __syncwarp();
        return ok;
    }

    __device__ bool send() const {
        const auto* from = reinterpret_cast<const Pack*>(all.send + peer * all.nbytes);
        auto* place = reinterpret_cast<Pack*>(all.places[peer] + all.rank * all.nbytes);
        for (u64 unit = 0; unit < units; ++unit) {
            const u64 number = all.before + unit;
            if (kTaken && number >= all.depth && !await(freed, number - all.depth + 1)) return false;
            Pack packs_of[kRows];
#pragma unroll
            for (int row = 0; row < kRows; ++row)
                if (holds() && pack(unit, row) < packs) packs_of[row] = from[pack(unit, row)];
#pragma unroll
            for (int row = 0; row < kRows; ++row) {
                if (kWay == kLines) {
                    put_pack(slot(unit) + row * 32 + lane, in_line(packs_of[row], number + 1));
                } else if (pack(unit, row) < packs) {
                    put_pack(kWay == kStraight ? place + pack(unit, row) : slot(unit) + row * 32 + lane, packs_of[row]);
                }
            }
            __syncwarp();
            if (kWay != kFlags || lane != 0) continue;
            fence_sys();
            st_relaxed_sys(filled, number + 1);
        }
        return true;
    }

    __device__ bool take() const {
        auto* to = reinterpret_cast<Pack*>(all.recv + peer * all.nbytes);
        for (u64 unit = 0; unit < units; ++unit) {
            const u64 number = all.before + unit;
            if (kWay == kFlags && !await(filled, number + 1)) return false;
            Pack packs_of[kRows];
            for (u32 polls = 0;; ++polls) {
                bool there = true;
#pragma unroll
                for (int row = 0; row < kRows; ++row) {
                    const Pack* from = slot(unit) + row * 32 + lane;
                    packs_of[row] = kWay == kLines ? ld_packet_sys(from) : get_pack(from);
                    there &= kWay == kFlags || !has_flag() || packs_of[row].y == number + 1;
                }
                if (__all_sync(0xffffffffu, there)) break;
                if (polls == 1u << 20) *all.failed = 1;
                if (polls == 1u << 20) return false;
            }
#pragma unroll
            for (int row = 0; row < kRows; ++row) {
                if (kWay == kLines) packs_of[row] = out_of_line(packs_of[row]);
                if (holds() && pack(unit, row) < packs) to[pack(unit, row)] = packs_of[row];
            }
            __syncwarp();
            if (lane == 0) st_after_loads_sys(freed, number + 1);
        }
        return true;
    }

    // Lane 7 of 16 holds a whole pack; its second half travels with lane 15, and both end with the flag.
    __device__ Pack in_line(Pack pack, u64 flag) const {
        const u64 shared = __shfl_sync(0xffffffffu, pack.y, lane & ~8u);
        return Pack{lane % 16 == 15 ? shared : pack.x, has_flag() ? flag : pack.y};
    }
    __device__ Pack out_of_line(Pack pack) const {
        const u64 shared = __shfl_sync(0xffffffffu, pack.x, lane | 8u);
        return Pack{pack.x, lane % 16 == 7 ? shared : pack.y};
    }
};

template <int kWay, int kRows>
__global__ void __launch_bounds__(1024, 1) all_to_all(const Streams all) {
    const Stream<kWay, kRows> stream(all);
    if (!stream.works()) return;
    if (stream.sends) stream.send();
    else stream.take();
}
