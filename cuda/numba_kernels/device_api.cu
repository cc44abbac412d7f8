// The device API as functions with C linkage, for linking with kernels that are not C++: Numba's.
#include "protocol/signal.cuh"
typedef u64 pyncclx_address;
#define PYNCCLX_API extern "C" __device__
#include "pyncclx.cuh"
