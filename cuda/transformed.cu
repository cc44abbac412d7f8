// Allgather and Alltoall of what a row transform makes of the elements, which may be of another type.
//
// The messages are those that arrive. A span's address is where it begins in them, and its packs are made when they
// leave, so that packets, chunks and windows (exchange.cuh) are as in allgather.cu and alltoall.cu.
#include "exchange.cuh"
#include "row_transform.cuh"

struct TransformedArgs {
    Team team;
    const char* send;  // elements of From
    char* recv;        // elements of To
    u64 nbytes;        // of one rank's block of recv
    i64 columns;       // elements of a row of send
    TransformArgs transform;
};

// Elements that follow each other, loaded by the widest words that their number allows.
template <class T, int kCount>
struct alignas(kCount * sizeof(T) < kPackNbytes ? kCount * sizeof(T) : kPackNbytes) Run {
    T values[kCount];
};

template <class From, class To, class Transform>
struct TransformedPacks {
    const TransformedArgs& args;

    // Pack `i` of the span that begins at byte `address` of what is sent.
    __device__ __forceinline__ Pack operator()(const char* address, u64 i, u64 nbytes) const {
        constexpr int kCount = Elements<To>::kCount;
        const u64 first = u64(address) / sizeof(To) + i * kCount, left = (nbytes - i * kPackNbytes) / sizeof(To);
        const u64 columns = u64(args.columns);
        u64 row = (first | columns) >> 32 ? first / columns : u32(first) / u32(columns);  // a long division is slow
        u64 column = first - row * columns;
        const Run<From, kCount> run = load<kCount>(reinterpret_cast<const From*>(args.send) + first, left);
        Elements<To> made = {};
#pragma unroll
        for (int e = 0; e < kCount; ++e) {
            if (u64(e) >= left) break;
            made.values[e] = Transform::template element<From, To>(args.transform, run.values[e], i64(row), i64(column));
            if (++column == columns) {
                column = 0;
                ++row;
            }
        }
        return pack_of(made);
    }

  private:
    template <int kCount>
    static __device__ __forceinline__ Run<From, kCount> load(const From* from, u64 left) {
        Run<From, kCount> run = {};
        if (left >= kCount && u64(from) % alignof(Run<From, kCount>) == 0)
            return *reinterpret_cast<const Run<From, kCount>*>(from);
#pragma unroll
        for (int e = 0; e < kCount; ++e)
            if (u64(e) < left) run.values[e] = from[e];
        return run;
    }
};

template <class From, class To, class Transform>
__global__ void __launch_bounds__(kMaxThreads, 1) allgather_transformed(const __grid_constant__ TransformedArgs args) {
    exchange_all(
        args.team, [&](int) { return part_of(nullptr, args.nbytes); },
        [&](int rank) { return part_of(args.recv + rank * args.nbytes, args.nbytes); },
        TransformedPacks<From, To, Transform>{args});
}

template <class From, class To, class Transform>
__global__ void __launch_bounds__(kMaxThreads, 1) alltoall_transformed(const __grid_constant__ TransformedArgs args) {
    exchange_all(
        args.team, [&](int rank) { return part_of(static_cast<const char*>(nullptr) + rank * args.nbytes, args.nbytes); },
        [&](int rank) { return part_of(args.recv + rank * args.nbytes, args.nbytes); },
        TransformedPacks<From, To, Transform>{args});
}
