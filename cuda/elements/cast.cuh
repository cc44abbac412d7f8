// Rows that change their element type on the way: rounded, or as 8-bit floats with a scale for each 128 elements.
//
//   1. Source loads the packs of a row of From that make one pack of To, and applies a row transform.
//   2. Cast rounds them to one pack of To. For 8-bit floats the lanes of a group find its largest magnitude first.
#pragma once
#include "protocol/channel.cuh"
#include "elements/numbers.cuh"
#include "protocol/vector.cuh"

template <class T>
struct Elements {  // the elements of a Pack
    static constexpr int kCount = kPackNbytes / sizeof(T);
    T values[kCount];
};

template <class T>
__device__ __forceinline__ Elements<T> elements_of(Pack pack) { return bits_as<Elements<T>>(pack); }

// Whether rows of a multiple of 16 bytes are aligned, given the address of the first.
__device__ __forceinline__ bool is_aligned(const char* rows) { return u64(rows) % kPackNbytes == 0; }

template <class T>
__device__ __forceinline__ Pack pack_of(const Elements<T>& elements) { return bits_as<Pack>(elements); }

// As many numbers as a pack has, rounded to T.
template <class T>
__device__ __forceinline__ Pack round_pack(const float* values) {
    constexpr int kEach = int(sizeof(u32) / sizeof(T));
    u32 words[4];
#pragma unroll
    for (int w = 0; w < 4; ++w) words[w] = round_word(values + w * kEach, T());
    return Pack{u64(words[1]) << 32 | words[0], u64(words[3]) << 32 | words[2]};
}

// Packs of a row of `elements`.
template <class T>
__device__ __forceinline__ u64 packs_of(i64 elements) { return u64(elements) / Elements<T>::kCount; }

constexpr int kGroup = 128;                           // elements that share a scale
constexpr int kGroupLanes = kGroup / kPackNbytes;     // a lane makes one pack of 8-bit floats
constexpr float kLargestFloat8 = 448.0f;
constexpr float kSmallestScaled = 1e-30f;             // least of a group's largest magnitude: its inverse is finite

// The source of pack `i` of a row of To: some packs of a row of From.
template <class From, class To>
struct Source {
    static constexpr int kPacks = sizeof(From) / sizeof(To), kEach = Elements<From>::kCount;
    Pack packs[kPacks] = {};

    // `aligned`: rows begin at multiples of 16; an argument, so that a loop of loads does not check it again.
    __device__ __forceinline__ void load(const char* row, u64 i, bool aligned) {
#pragma unroll
        for (int p = 0; p < kPacks; ++p) {
            const char* from = row + (i * kPacks + p) * kPackNbytes;
            packs[p] = aligned ? *reinterpret_cast<const Pack*>(from) : load_bytes(from, kPackNbytes);
        }
    }

    // Loads from row `row`, and applies a row transform (row_transform.cuh).
    template <class Transform, class Args>
    __device__ __forceinline__ void transform(const Args& args, i64 row, u64 i) {
#pragma unroll
        for (int p = 0; p < kPacks; ++p)
            packs[p] = Transform::template pack<From>(args, packs[p], row, i64(i * kPacks + p) * kEach);
    }

    __device__ __forceinline__ void values(float (&values)[kPacks * kEach]) const {
#pragma unroll
        for (int p = 0; p < kPacks; ++p) {
            const Elements<From> part = elements_of<From>(packs[p]);
#pragma unroll
            for (int e = 0; e < kEach; ++e) values[p * kEach + e] = float(part.values[e]);
        }
    }
};

// Makes a pack of To. All lanes of a warp call it, for consecutive packs from a multiple of 32 on.
template <class From, class To>
struct Cast {
    static __device__ __forceinline__ Pack round(const Source<From, To>& source, float&) {
        float values[Elements<To>::kCount];
        source.values(values);
        return round_pack<To>(values);
    }
};

template <class Same>
struct Cast<Same, Same> {
    static __device__ __forceinline__ Pack round(const Source<Same, Same>& source, float&) { return source.packs[0]; }
};

// value = Float8 * scale; a group's largest magnitude becomes 448.
template <class From>
struct Cast<From, Float8> {
    static __device__ __forceinline__ Pack round(const Source<From, Float8>& source, float& scale) {
        float values[kPackNbytes];
        source.values(values);
        const float largest = group_largest(values);
        const float inverse = kLargestFloat8 / largest;
        scale = largest / kLargestFloat8;
#pragma unroll
        for (float& value : values) value *= inverse;
        return round_pack<Float8>(values);
    }

  private:
    static __device__ float group_largest(const float (&values)[kPackNbytes]) {
        float largest = kSmallestScaled;
#pragma unroll
        for (float value : values) largest = fmaxf(largest, fabsf(value));
        for (int lanes = kGroupLanes / 2; lanes > 0; lanes /= 2)
            largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, lanes));
        return largest;
    }
};

// Whether rows of To have scales, and which lanes' packs begin a group with one.
template <class To>
__device__ __forceinline__ bool begins_group(u64 pack) {
    return sizeof(To) == sizeof(Float8) && pack % kGroupLanes == 0;
}
