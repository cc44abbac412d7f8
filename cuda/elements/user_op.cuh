// A program's own reduction operator, compiled by Numba and called for each pair of elements.
//
// On a GPU it is linked with the kernel before machine code is made, so it is inlined. On the host device
// pyncclx/backends/host sets a pointer; each operator has its own copy of the library.
#pragma once
#include "protocol/signal.cuh"

#ifdef PYNCCLX_HOST
EMULATOR_EXPORT void (*pyncclx_user_op)(const void* a, const void* b, void* result);
void (*pyncclx_user_op)(const void* a, const void* b, void* result) = nullptr;
#else
extern "C" __device__ void pyncclx_user_op(const void* a, const void* b, void* result);
#endif

// An element of a structured dtype; `Word` is the widest whose size divides it.
template <u32 kNbytes, class Word>
struct Record {
    Word words[kNbytes / sizeof(Word)];
};

struct UserOp {
    static constexpr bool kCostly = true;  // it may be costly
    template <class A>
    __device__ __forceinline__ static A combine(A a, A b) {
        A result = a;  // fields that the function does not set keep the values of a
        pyncclx_user_op(&a, &b, &result);
        return result;
    }
    template <class A>
    __device__ __forceinline__ static A finish(A folded, int) { return folded; }
};
