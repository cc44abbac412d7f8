// Rows that change their element type on the way: rounded, or as 8-bit floats with a scale for each 128 elements.
#pragma once
#include "channel.cuh"
#include "numbers.cuh"
#include "vector.cuh"

template <class T>
struct Elements {  // of a Pack
    static constexpr int kCount = kPackNbytes / sizeof(T);
    T values[kCount];
};

template <class T>
__device__ __forceinline__ Elements<T> elements_of(Pack pack) { return bits_as<Elements<T>>(pack); }

template <class T>
__device__ __forceinline__ Pack pack_of(const Elements<T>& elements) { return bits_as<Pack>(elements); }

constexpr int kGroup = 128;                           // elements with one scale
constexpr int kGroupLanes = kGroup / kPackNbytes;     // a lane makes one pack of 8-bit floats
constexpr float kLargestFloat8 = 448.0f;
constexpr float kSmallestScaled = 1e-30f;             // of a group's largest magnitude: its inverse is finite

// The elements that pack `i` of a row of To is made of, from a row of From.
template <class From, class To>
struct Source {
    static constexpr int kPacks = sizeof(From) / sizeof(To), kEach = Elements<From>::kCount;
    float values[Elements<To>::kCount];

    __device__ void load(const char* row, u64 i, u64 nbytes) {
#pragma unroll
        for (int p = 0; p < kPacks; ++p) {
            const Elements<From> part = elements_of<From>(load_pack(row, i * kPacks + p, nbytes));
#pragma unroll
            for (int e = 0; e < kEach; ++e) values[p * kEach + e] = float(part.values[e]);
        }
    }
};

// The threads of a crew move a row of `hidden` elements. All lanes of a warp are of one crew.
template <class From, class To>
struct Cast {
    static __device__ void move(const Crew& crew, const char* from, u64 hidden, char* to, float*) {
        Pack* row = reinterpret_cast<Pack*>(to);
#pragma unroll 2
        for (u64 i = crew.member; i < hidden / Elements<To>::kCount; i += crew.members) {
            Source<From, To> source;
            source.load(from, i, hidden * sizeof(From));
            Elements<To> rounded;
#pragma unroll
            for (int e = 0; e < Elements<To>::kCount; ++e) rounded.values[e] = To(source.values[e]);
            put_pack(row + i, pack_of(rounded));
        }
    }
};

template <class Same>
struct Cast<Same, Same> {
    static __device__ void move(const Crew& crew, const char* from, u64 hidden, char* to, float*) {
        const u64 nbytes = hidden * sizeof(Same);
        Pack* row = reinterpret_cast<Pack*>(to);
        move_packs(
            crew.member, packs_in(nbytes), crew.members,
            [&](u64 i) { return load_pack(from, i, nbytes); },
            [&](u64 i, Pack pack) { put_pack(row + i, pack); });
    }
};

// value = Float8 * scale; a group's largest magnitude becomes 448.
template <class From>
struct Cast<From, Float8> {
    static __device__ void move(const Crew& crew, const char* from, u64 hidden, char* to, float* scales) {
        const u64 packs = hidden / kPackNbytes, lane = threadIdx.x % 32;
        for (u64 first = crew.member - lane; first < packs; first += crew.members) {  // alike in all lanes of a warp
            const u64 i = first + lane;
            Source<From, Float8> source = {};
            if (i < packs) source.load(from, i, hidden * sizeof(From));
            const float largest = group_largest(source.values);
            const float inverse = kLargestFloat8 / largest;
            Elements<Float8> rounded;
#pragma unroll
            for (int e = 0; e < int(kPackNbytes); ++e) rounded.values[e] = Float8(source.values[e] * inverse);
            if (i >= packs) continue;
            put_pack(reinterpret_cast<Pack*>(to) + i, pack_of(rounded));
            if (lane % kGroupLanes == 0) scales[i / kGroupLanes] = largest / kLargestFloat8;
        }
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
