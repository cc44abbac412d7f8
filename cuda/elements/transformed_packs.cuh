// Packs of the elements of an array after a row transform.
#pragma once
#include "elements/row_transform.cuh"

// Twin: TransformedRows of pyncclx/memory/parameters.py.
struct TransformedRows {
    const char* send;  // elements of From
    char* recv;        // elements of To
    u64 nbytes;        // bytes of recv, or of one rank's block of it
    i64 columns;       // elements of a row of send
    TransformArgs transform;
};

// Consecutive elements, loaded by the widest words that their number allows.
template <class T, int kCount>
struct alignas(kCount * sizeof(T) < kPackNbytes ? kCount * sizeof(T) : kPackNbytes) Run {
    T values[kCount];
};

template <class From, class To, class Transform>
struct TransformedPacks {
    using Whole = Run<From, Elements<To>::kCount>;
    const TransformedRows& args;

    // Returns pack `i` of the span that begins at byte `address` of the data to send.
    __device__ __forceinline__ Pack operator()(const char* address, u64 i, u64 nbytes) const {
        constexpr u64 kCount = Elements<To>::kCount;
        const u64 first = u64(address) / sizeof(To) + i * kCount, left = (nbytes - i * kPackNbytes) / sizeof(To);
        const u64 columns = u64(args.columns);
        const u64 row = (first | columns) >> 32 ? first / columns : u32(first) / u32(columns);  // a division of 64 bits is slow
        const u64 column = first - row * columns;
        const From* from = reinterpret_cast<const From*>(args.send) + first;
        if (left < kCount || column + kCount > columns || u64(from) % alignof(Whole) != 0)
            return one_by_one(args, from, smaller(left, kCount), row, column);
        const Whole whole = *reinterpret_cast<const Whole*>(from);
        Elements<To> made;
#pragma unroll
        for (u64 e = 0; e < kCount; ++e)
            made.values[e] = Transform::template element<From, To>(args.transform, whole.values[e], i64(row), i64(column + e));
        return pack_of(made);
    }

    template <bool kPut>
    __device__ __forceinline__ void copy(u32 member, u32 members, const char* from, void* target, u64 nbytes) const {
        char* to = static_cast<char*>(target);
        move_packs(
            member, packs_in(nbytes), members, [&](u64 i) { return (*this)(from, i, nbytes); },
            [&](u64 i, Pack pack) {
                if constexpr (kPut) put_pack(to, i, nbytes, pack);
                else store_pack(to, i, nbytes, pack);
            });
    }

  private:
    // The rare cases, out of the loops: a pack of several rows, a message's last pack, an unaligned address.
    static __device__ __noinline__ Pack one_by_one(const TransformedRows& args, const From* from, u64 count, u64 row, u64 column) {
        Elements<To> made = {};
#pragma unroll 1
        for (u64 e = 0; e < count; ++e) {
            made.values[e] = Transform::template element<From, To>(args.transform, from[e], i64(row), i64(column));
            if (++column < u64(args.columns)) continue;
            column = 0;
            ++row;
        }
        return pack_of(made);
    }
};
