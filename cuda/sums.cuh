// Sums over rows of tokens, in single precision and a fixed order: what a combine does on both sides.
#pragma once
#include "cast.cuh"

// Packs that a thread has on their way: kPacks of each of kRows rows. A rank has two rows of most tokens, and parts of
// a token's sum come from most ranks.
template <int packs, int rows>
struct AtOnce {
    static constexpr int kPacks = packs, kRows = rows;
};
using Folding = AtOnce<4, 2>;
using Adding = AtOnce<2, 4>;
using One = AtOnce<1, 2>;

struct Aligned {  // rows that begin at multiples of 16
    static __device__ __forceinline__ Pack load(const char* from) { return get_pack(reinterpret_cast<const Pack*>(from)); }
};
struct Unaligned {
    static __device__ __forceinline__ Pack load(const char* from) { return load_bytes(from, kPackNbytes); }
};

// Adds packs of some rows, with weights, in their order: in each row pack i, i + stride …
template <class T, class Shape>
struct Sums {
    float sums[Shape::kPacks][Elements<T>::kCount] = {};

    // `row(s)` is where row s begins; packs from `end` on are left alone. Of pack i of row s becomes `made(s, i, pack)`.
    template <class Address, class Row, class Weight, class Made>
    __device__ __forceinline__ void add(int rows, u32 i, u32 stride, u32 end, Row row, Weight weight, Made made) {
#pragma unroll 1
        for (int begin = 0; begin < rows; begin += Shape::kRows) {
            Pack packs[Shape::kRows][Shape::kPacks];
            float factors[Shape::kRows];
#pragma unroll
            for (int s = 0; s < Shape::kRows; ++s) {
                const char* from = row(begin + s < rows ? begin + s : begin);
                factors[s] = weight(begin + s < rows ? begin + s : begin);
#pragma unroll
                for (int p = 0; p < Shape::kPacks; ++p)
                    if (begin + s < rows && i + p * stride < end)
                        packs[s][p] = Address::load(from + (i + p * stride) * kPackNbytes);
            }
#pragma unroll
            for (int s = 0; s < Shape::kRows; ++s)
                if (begin + s < rows)
#pragma unroll
                    for (int p = 0; p < Shape::kPacks; ++p)
                        add(p, made(begin + s, i + p * stride, packs[s][p]), factors[s]);
        }
    }

    __device__ __forceinline__ void add(int p, Pack pack, float factor) {
        const Elements<T> part = elements_of<T>(pack);
#pragma unroll
        for (int e = 0; e < Elements<T>::kCount; ++e) sums[p][e] += factor * float(part.values[e]);
    }

    __device__ __forceinline__ Pack rounded(int p) const {
        Elements<T> elements;
#pragma unroll
        for (int e = 0; e < Elements<T>::kCount; e += 2) round_pair(sums[p][e], sums[p][e + 1], elements.values + e);
        return pack_of(elements);
    }

    // Stores pack `i` of a row of Out's.
    template <class Out>
    __device__ __forceinline__ void store(int p, char* out, u64 i, u64 nbytes) const {
        constexpr int kOut = sizeof(Out) / sizeof(T), kEach = Elements<Out>::kCount;
#pragma unroll
        for (int o = 0; o < kOut; ++o) {
            Elements<Out> elements;
#pragma unroll
            for (int e = 0; e < kEach; e += 2)
                round_pair(sums[p][o * kEach + e], sums[p][o * kEach + e + 1], elements.values + e);
            store_pack(out, i * kOut + o, nbytes, pack_of(elements));
        }
    }
};
