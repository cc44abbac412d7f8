// A row transform: a program's function, compiled by Numba, that changes every element while it is sent.
//
// Its arguments are an element, its row and column in the sender's array, and the addresses of up to four arrays. Like an
// operator (user_op.cuh) it is linked with the kernel on a GPU, and called through a pointer on the host device.
#pragma once
#include "elements/cast.cuh"

constexpr int kMostTransformArrays = 4;

#define PYNCCLX_TRANSFORM_PARAMETERS                                                                       \
    const void *element, void *result, i64 row, i64 column, const void *first, const void *second, const void *third, \
        const void *fourth
#ifdef PYNCCLX_HOST
EMULATOR_EXPORT void (*pyncclx_row_transform)(PYNCCLX_TRANSFORM_PARAMETERS);
void (*pyncclx_row_transform)(PYNCCLX_TRANSFORM_PARAMETERS) = nullptr;
#else
extern "C" __device__ void pyncclx_row_transform(PYNCCLX_TRANSFORM_PARAMETERS);
#endif

struct TransformArgs {
    const void* arrays[kMostTransformArrays];
};

struct RowTransform {
    template <class From, class To>
    static __device__ __forceinline__ To element(const TransformArgs& args, From from, i64 row, i64 column) {
        const auto x = typename AccumulatorOf<From>::type(from);
        typename AccumulatorOf<To>::type result;
        const void* const* arrays = args.arrays;
        pyncclx_row_transform(&x, &result, row, column, arrays[0], arrays[1], arrays[2], arrays[3]);
        return To(result);
    }

    // A pack of elements of one row.
    template <class T>
    static __device__ __forceinline__ Pack pack(const TransformArgs& args, Pack pack, i64 row, i64 column) {
        Elements<T> elements = elements_of<T>(pack);
#pragma unroll
        for (int e = 0; e < Elements<T>::kCount; ++e)
            elements.values[e] = RowTransform::element<T, T>(args, elements.values[e], row, column + e);
        return pack_of(elements);
    }
};

struct NoTransform {
    template <class T>
    static __device__ __forceinline__ Pack pack(const TransformArgs&, Pack pack, i64, i64) { return pack; }
};
