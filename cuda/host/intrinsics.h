// What CUDA C++ has without an #include: atomics, bit counting, reinterpretation, min/max, vector types.
#pragma once

namespace emulator {

template <class T>
struct Same { typedef T type; };  // keeps the compiler from deducing T from this argument

// CUDA's atomics are relaxed: they order nothing else.
template <class T, class Change>
T atomic_update(T* p, Change change) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "atomics work on 4 or 8 bytes");
    settle(p);
    T seen, next;
    __atomic_load(p, &seen, __ATOMIC_RELAXED);
    do {
        next = change(seen);
    } while (!exchange(p, &seen, next));
    return seen;
}

}  // namespace emulator

// Each in three scopes, which are one on a CPU: block, GPU (the plain name), and system.
#define EMULATOR_ATOMIC(name, expression) \
    template <class T> \
    T name(T* p, typename emulator::Same<T>::type value) { \
        return emulator::atomic_update(p, [value](T old) { return static_cast<T>(expression); }); \
    } \
    template <class T> \
    T name##_block(T* p, typename emulator::Same<T>::type value) { return name(p, value); } \
    template <class T> \
    T name##_system(T* p, typename emulator::Same<T>::type value) { return name(p, value); }

EMULATOR_ATOMIC(atomicAdd, old + value)
EMULATOR_ATOMIC(atomicSub, old - value)
EMULATOR_ATOMIC(atomicMin, value < old ? value : old)
EMULATOR_ATOMIC(atomicMax, old < value ? value : old)
EMULATOR_ATOMIC(atomicAnd, old & value)
EMULATOR_ATOMIC(atomicOr, old | value)
EMULATOR_ATOMIC(atomicXor, old ^ value)
EMULATOR_ATOMIC(atomicExch, (static_cast<void>(old), value))
#undef EMULATOR_ATOMIC

template <class T>
T atomicCAS(T* p, typename emulator::Same<T>::type expected, typename emulator::Same<T>::type value) {
    return emulator::atomic_update(p, [=](T old) { return old == expected ? value : old; });
}
template <class T>
T atomicCAS_system(T* p, typename emulator::Same<T>::type expected, typename emulator::Same<T>::type value) {
    return atomicCAS(p, expected, value);
}

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }
inline int __clzll(long long x) { return x == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(x)); }

namespace emulator {
template <class To, class From>
To reinterpret(From from) {
    static_assert(sizeof(To) == sizeof(From), "the same bits under another type");
    To to;
    memcpy(&to, &from, sizeof(To));
    return to;
}
}  // namespace emulator

inline unsigned __float_as_uint(float x) { return emulator::reinterpret<unsigned>(x); }
inline float __uint_as_float(unsigned x) { return emulator::reinterpret<float>(x); }
inline int __float_as_int(float x) { return emulator::reinterpret<int>(x); }
inline float __int_as_float(int x) { return emulator::reinterpret<float>(x); }
inline long long __double_as_longlong(double x) { return emulator::reinterpret<long long>(x); }
inline double __longlong_as_double(long long x) { return emulator::reinterpret<double>(x); }

template <class T>
T __ldg(const T* p) { return *p; }
inline void __nanosleep(unsigned) { emulator::current->leave(); }
inline void __trap() { emulator::current->give_up("__trap()"); }

// Not templates: CUDA converts the arguments to the wider or unsigned type.
#define EMULATOR_MIN_MAX(T) \
    inline T min(T a, T b) { return b < a ? b : a; } \
    inline T max(T a, T b) { return a < b ? b : a; }
EMULATOR_MIN_MAX(int)
EMULATOR_MIN_MAX(unsigned)
EMULATOR_MIN_MAX(long)
EMULATOR_MIN_MAX(unsigned long)
EMULATOR_MIN_MAX(long long)
EMULATOR_MIN_MAX(unsigned long long)
#undef EMULATOR_MIN_MAX
inline unsigned min(int a, unsigned b) { return min(static_cast<unsigned>(a), b); }
inline unsigned min(unsigned a, int b) { return min(a, static_cast<unsigned>(b)); }
inline unsigned max(int a, unsigned b) { return max(static_cast<unsigned>(a), b); }
inline unsigned max(unsigned a, int b) { return max(a, static_cast<unsigned>(b)); }
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }

#define EMULATOR_VECTOR(T, name, alignment2, alignment4) \
    struct alignas(alignment2) name##2 { T x, y; }; \
    struct alignas(alignment4) name##4 { T x, y, z, w; }; \
    inline name##2 make_##name##2(T x, T y) { return name##2{x, y}; } \
    inline name##4 make_##name##4(T x, T y, T z, T w) { return name##4{x, y, z, w}; }
EMULATOR_VECTOR(unsigned char, uchar, 2, 4)
EMULATOR_VECTOR(unsigned short, ushort, 4, 8)
EMULATOR_VECTOR(int, int, 8, 16)
EMULATOR_VECTOR(unsigned, uint, 8, 16)
EMULATOR_VECTOR(long long, longlong, 16, 16)
EMULATOR_VECTOR(unsigned long long, ulonglong, 16, 16)
EMULATOR_VECTOR(float, float, 8, 16)
EMULATOR_VECTOR(double, double, 16, 16)
#undef EMULATOR_VECTOR
