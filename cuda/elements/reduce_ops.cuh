// The reduction operators, and the fold that applies them in rank order.
//
// Rank order and one accumulator type for each element type give the same bits on all ranks, in all algorithms and all runs:
// half and bfloat16 are folded in float and rounded once, integers wrap around.
#pragma once
#include "elements/numbers.cuh"
#include "elements/user_op.cuh"
#include "protocol/vector.cuh"

// C++ leaves overflow of signed integers undefined, MPI and NumPy wrap around: compute in u64.
template <class T>
__device__ __forceinline__ T sum(T a, T b) { return T(u64(a) + u64(b)); }
template <class T>
__device__ __forceinline__ T product(T a, T b) { return T(u64(a) * u64(b)); }
__device__ __forceinline__ float sum(float a, float b) { return a + b; }
__device__ __forceinline__ float product(float a, float b) { return a * b; }
__device__ __forceinline__ double sum(double a, double b) { return a + b; }
__device__ __forceinline__ double product(double a, double b) { return a * b; }
template <class Real>
__device__ __forceinline__ Complex<Real> sum(Complex<Real> a, Complex<Real> b) { return a + b; }
template <class Real>
__device__ __forceinline__ Complex<Real> product(Complex<Real> a, Complex<Real> b) { return a * b; }

struct Operator {  // defaults; `finish` makes the result of the folded value of `size` ranks
    static constexpr bool kCostly = false;  // true: more warps fold (two_shot.cuh)
    template <class A>
    __device__ static A finish(A folded, int) { return folded; }
};

struct Sum : Operator {
    template <class A>
    __device__ static A combine(A a, A b) { return sum(a, b); }
};
struct Avg : Sum {
    template <class A>
    __device__ static A finish(A folded, int size) { return folded / A(size); }
    template <class Real>
    __device__ static Complex<Real> finish(Complex<Real> folded, int size) { return folded / Real(size); }
};
struct Prod : Operator {
    template <class A>
    __device__ static A combine(A a, A b) { return product(a, b); }
};
// NaN wins against all numbers, so the result does not depend on the rank that has it. Integers are never NaN: there the
// compiler leaves the comparison out.
template <class A>
__device__ __forceinline__ bool is_nan(A value) { return value != value; }

struct Min : Operator {
    template <class A>
    __device__ static A combine(A a, A b) { return b < a || is_nan(b) ? b : a; }
};
struct Max : Operator {
    template <class A>
    __device__ static A combine(A a, A b) { return a < b || is_nan(b) ? b : a; }
};
struct BitAnd : Operator {
    template <class A>
    __device__ static A combine(A a, A b) { return A(a & b); }
};
struct BitOr : Operator {
    template <class A>
    __device__ static A combine(A a, A b) { return A(a | b); }
};
struct BitXor : Operator {
    template <class A>
    __device__ static A combine(A a, A b) { return A(a ^ b); }
};
struct LogicalAnd : Operator {
    template <class A>
    __device__ static A combine(A a, A b) { return A(a && b); }
};
struct LogicalOr : Operator {
    template <class A>
    __device__ static A combine(A a, A b) { return A(a || b); }
};
struct LogicalXor : Operator {
    template <class A>
    __device__ static A combine(A a, A b) { return A(!a != !b); }
};
// Of equal values, and of several NaN, the smaller index wins, as MPI defines it.
template <class V>
__device__ __forceinline__ bool ties(V a, V b) { return a == b || (is_nan(a) && is_nan(b)); }

struct MinLoc : Operator {
    template <class V>
    __device__ static Pair<V> combine(Pair<V> a, Pair<V> b) {
        if (ties(a.value, b.value)) return {a.value, a.index < b.index ? a.index : b.index};
        return b.value < a.value || is_nan(b.value) ? b : a;
    }
};
struct MaxLoc : Operator {
    template <class V>
    __device__ static Pair<V> combine(Pair<V> a, Pair<V> b) {
        if (ties(a.value, b.value)) return {a.value, a.index < b.index ? a.index : b.index};
        return a.value < b.value || is_nan(b.value) ? b : a;
    }
};

// The elements of one pack, folded over the ranks one after the other.
template <class T, class Op>
struct Fold {
    using A = typename AccumulatorOf<T>::type;
    static constexpr int kElements = kPackNbytes / sizeof(T);
    A folded[kElements];

    __device__ void add(int rank, Pack pack) {
        T elements[kElements];
        memcpy(elements, &pack, sizeof pack);
#pragma unroll
        for (int i = 0; i < kElements; ++i)
            folded[i] = rank == 0 ? A(elements[i]) : Op::combine(folded[i], A(elements[i]));
    }

    __device__ Pack result(int size) const {
        T elements[kElements];
#pragma unroll
        for (int i = 0; i < kElements; ++i) elements[i] = T(Op::finish(folded[i], size));
        Pack pack;
        memcpy(&pack, elements, sizeof pack);
        return pack;
    }
};
