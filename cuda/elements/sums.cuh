// Weighted sums over rows of tokens, in single precision and a fixed order, for both sides of a combine.
//
// A warp sums tiles of a row: each thread has every 32nd pack, and loads several packs of several rows before it adds the
// first. How many (Folding, Adding, Few, One): not measured by themselves.
#pragma once
#include "elements/cast.cuh"

// Packs that a thread loads before it adds: kPacks of each of kRows rows. A rank has two rows of most tokens, and parts of a
// token's sum come from most ranks.
template <int packs, int rows>
struct AtOnce {
    static constexpr int kPacks = packs, kRows = rows;
    static constexpr u32 kTile = 32 * packs;  // packs of a row that a warp adds at once
};
using Folding = AtOnce<4, 2>;
using Adding = AtOnce<2, 4>;
using Few = AtOnce<1, 4>;
using One = AtOnce<1, 2>;

struct Aligned {  // rows that begin at multiples of 16
    static __device__ __forceinline__ Pack load(const char* from) { return get_pack(reinterpret_cast<const Pack*>(from)); }
};
struct Unaligned {
    static __device__ __forceinline__ Pack load(const char* from) { return load_bytes(from, kPackNbytes); }
};

// Adds packs of some rows, with weights, in their order: of each row pack i, i + 32 …
template <class T, class Shape>
struct Sums {
    float sums[Shape::kPacks][Elements<T>::kCount] = {};

    // row(s) returns the address of row s, made(s, i, pack) the summand for pack i of row s. Packs from `end` on are
    // not touched; with kWhole there are none.
    template <class Address, bool kWhole, class Row, class Weight, class Made>
    __device__ __forceinline__ void add(int rows, u32 i, u32 end, Row row, Weight weight, Made made) {
#pragma unroll 1
        for (int begin = 0; begin < rows; begin += Shape::kRows) {
            Pack packs[Shape::kRows][Shape::kPacks];
            float factors[Shape::kRows];
#pragma unroll
            for (int s = 0; s < Shape::kRows; ++s) {
                if (s > 0 && begin + s >= rows) break;
                const char* from = row(begin + s) + u64(i) * kPackNbytes;
                factors[s] = weight(begin + s);
#pragma unroll
                for (int p = 0; p < Shape::kPacks; ++p)
                    if (kWhole || i + p * 32 < end) packs[s][p] = Address::load(from + p * 32 * kPackNbytes);
            }
#pragma unroll
            for (int s = 0; s < Shape::kRows; ++s)
                if (s == 0 || begin + s < rows)
#pragma unroll
                    for (int p = 0; p < Shape::kPacks; ++p) add(p, made(begin + s, i + p * 32, packs[s][p]), factors[s]);
        }
    }

    __device__ __forceinline__ void add(int p, Pack pack, float factor) {
        const Elements<T> part = elements_of<T>(pack);
#pragma unroll
        for (int e = 0; e < Elements<T>::kCount; ++e) sums[p][e] += factor * float(part.values[e]);
    }

    __device__ __forceinline__ Pack rounded(int p) const { return round_pack<T>(sums[p]); }

    // Stores pack `i` of the sums as packs of a row of Out.
    template <class Out>
    __device__ __forceinline__ void store(int p, char* out, u64 i, u64 nbytes) const {
        constexpr int kOut = sizeof(Out) / sizeof(T), kEach = Elements<Out>::kCount;
#pragma unroll
        for (int o = 0; o < kOut; ++o) store_pack(out, i * kOut + o, nbytes, round_pack<Out>(sums[p] + o * kEach));
    }
};
