// Element types that C++ lacks: half, bfloat16, an 8-bit float, complex, and the pairs of MINLOC and MAXLOC.
//
// Conversions are integer arithmetic, so host and device give the same bits, and kernels need no header of the CUDA toolkit.
// Rounding is to nearest, ties to even, as in IEEE 754 and NumPy.
#pragma once
#include "protocol/signal.cuh"

template <class To, class From>
__device__ __forceinline__ To bits_as(From from) {
    static_assert(sizeof(To) == sizeof(From), "bits_as keeps the size");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}

struct Half {
    unsigned short bits;

    Half() = default;
    __device__ explicit Half(float value) : bits(round(bits_as<u32>(value))) {}

    __device__ explicit operator float() const {
        const u32 sign = u32(bits & 0x8000) << 16;
        const u32 rest = bits & 0x7fff;
        if (rest >= 0x7c00) return bits_as<float>(sign | 0x7f800000 | (rest & 0x3ff) << 13);  // inf, nan
        if (rest >= 0x0400) return bits_as<float>(sign | ((rest << 13) + 0x38000000));        // normal
        const float subnormal = float(rest) * 5.9604644775390625e-8f;                         // 2^-24
        return bits_as<float>(sign | bits_as<u32>(subnormal));
    }

  private:
    __device__ static unsigned short round(u32 value) {
        const u32 sign = value >> 16 & 0x8000, magnitude = value & 0x7fffffff;
        if (magnitude > 0x7f800000) return sign | 0x7e00 | (magnitude >> 13 & 0x1ff);  // nan stays nan
        if (magnitude >= 0x477ff000) return sign | 0x7c00;                             // past the largest half
        if (magnitude < 0x38800000) {  // subnormal: adding 0.5 shifts the value to the last bits of a float
            const float shifted = bits_as<float>(magnitude) + 0.5f;
            return sign | (bits_as<u32>(shifted) - 0x3f000000);
        }
        return sign | ((magnitude + 0xfff + (magnitude >> 13 & 1) - 0x38000000) >> 13);
    }
};

struct Bfloat16 {
    unsigned short bits;

    Bfloat16() = default;
    __device__ explicit Bfloat16(float value) {
        const u32 word = bits_as<u32>(value);
        const bool nan = (word & 0x7fffffff) > 0x7f800000;
        bits = nan ? (word >> 16 | 0x40) : (word + 0x7fff + (word >> 16 & 1)) >> 16;
    }
    __device__ explicit operator float() const { return bits_as<float>(u32(bits) << 16); }
};

// What elements of a type are computed with: half types in float.
template <class T>
struct AccumulatorOf {
    using type = T;
};
template <>
struct AccumulatorOf<Half> {
    using type = float;
};
template <>
struct AccumulatorOf<Bfloat16> {
    using type = float;
};

// e4m3: four bits of exponent, three of mantissa, no infinity. The largest value is 448; larger ones become nan.
struct Float8 {
    unsigned char bits;

    Float8() = default;
    __device__ explicit Float8(float value) : bits(round(bits_as<u32>(value))) {}

    __device__ explicit operator float() const {
        const u32 sign = u32(bits & 0x80) << 24, rest = bits & 0x7f;
        if (rest == 0x7f) return bits_as<float>(sign | 0x7fc00000);
        if (rest >= 0x08) return bits_as<float>(sign | ((rest << 20) + 0x3c000000));
        return bits_as<float>(sign | bits_as<u32>(float(rest) * 0.001953125f));  // subnormal: 2^-9
    }

  private:
    __device__ static unsigned char round(u32 value) {
        const u32 sign = value >> 24 & 0x80, magnitude = value & 0x7fffffff;
        if (magnitude > 0x43e80000) return sign | 0x7f;  // past the middle between 448 and the next step, or nan
        if (magnitude < 0x3c800000) {  // subnormal, as for half
            const float shifted = bits_as<float>(magnitude) + 16384.0f;
            return sign | (bits_as<u32>(shifted) - 0x46800000);
        }
        return sign | ((magnitude + 0x7ffff + (magnitude >> 20 & 1) - 0x3c000000) >> 20);
    }
};

// As many numbers as a word has, rounded to T; by one instruction where the GPU has it. For Float8 none is larger than 448.
template <class T>
__device__ __forceinline__ u32 round_word(const float* values, T) {
    T rounded[sizeof(u32) / sizeof(T)];
#pragma unroll
    for (u32 i = 0; i < sizeof(u32) / sizeof(T); ++i) rounded[i] = T(values[i]);
    u32 word;
    memcpy(&word, rounded, sizeof word);
    return word;
}

#ifdef PYNCCLX_CONVERTS_TO_FLOAT8
__device__ __forceinline__ u32 round_word(const float* values, Float8) {
    return to_float8_pair(values[0], values[1]) | u32(to_float8_pair(values[2], values[3])) << 16;
}
#endif

#ifdef PYNCCLX_CONVERTS_TO_BFLOAT16
__device__ __forceinline__ u32 round_word(const float* values, Bfloat16) { return to_bfloat16_pair(values[0], values[1]); }
#endif

template <class Real>
struct Complex {
    Real re, im;
};

template <class Real>
__device__ __forceinline__ Complex<Real> operator+(Complex<Real> a, Complex<Real> b) {
    return {a.re + b.re, a.im + b.im};
}

template <class Real>
__device__ __forceinline__ Complex<Real> operator*(Complex<Real> a, Complex<Real> b) {
    return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}

template <class Real>
__device__ __forceinline__ Complex<Real> operator/(Complex<Real> a, Real b) {
    return {a.re / b, a.im / b};
}

template <class Value>
struct Pair {  // laid out as MPI's FLOAT_INT and its relatives
    Value value;
    int index;
};
