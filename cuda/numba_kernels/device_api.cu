// The device API as functions with C linkage for kernels that are not C++ to be linked with: those of Numba.
#include "protocol/signal.cuh"
typedef u64 pyncclx_address;
#define PYNCCLX_API extern "C" __device__
#include "pyncclx.cuh"
