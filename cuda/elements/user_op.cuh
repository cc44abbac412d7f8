// An operator that the program's author wrote: compiled by Numba, and called for every two elements.
//
// On a GPU it is linked with the kernel before machine code is made, so that nothing is left of the call. On the
// host device `backends/host.py` sets the pointer; each operator has a copy of the library to itself.
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
    static constexpr bool kCostly = true;  // who knows what the author computes
    template <class A>
    __device__ __forceinline__ static A combine(A a, A b) {
        A result = a;  // what the author does not set stays
        pyncclx_user_op(&a, &b, &result);
        return result;
    }
    template <class A>
    __device__ __forceinline__ static A finish(A folded, int) { return folded; }
};
