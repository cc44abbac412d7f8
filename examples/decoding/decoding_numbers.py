"""Operations on rows of small integers: NumPy's functions, or fused CuPy kernels."""

from __future__ import annotations

import ctypes
from functools import cache
from math import prod
from typing import Any

import numpy as np

Array = Any  # NumPy's or CuPy's
LARGEST = 7  # the largest number in a row
TYPES = {"f": 0, "e": 2}  # cudaDataType_t
COMPUTE_SINGLE, GEMM_DEFAULT = 68, -1  # cublasComputeType_t, cublasGemmAlgo_t
SNAP = "y = T(fminf(fmaxf(rintf((float)x / by * scale), low), 7.0f))"
WEIGH = "const float behind = best - x; y = T(behind < 4 ? ldexpf(1, -int(behind)) : 0)"
ADD_UP = """
float sum = 0;
for (int choice = i / hidden * k; choice < (i / hidden + 1) * k; ++choice)
    if (slots[choice] >= 0) sum += weights[choice] * (float)results[(long long)slots[choice] * hidden + i % hidden];
out = T(sum);
"""


@cache
def _fused(xp: Any, inputs: str, outputs: str, text: str, name: str) -> Any:
    return xp.ElementwiseKernel(inputs, outputs, text, name)


def snap(xp: Any, x: Array, scale: float, low: float = -LARGEST, by: Array = 1) -> Array:
    """Round x / by * scale to integers from `low` to 7."""
    if xp is np:
        return np.clip(np.rint(x.astype("f4") / by * np.float32(scale)), low, LARGEST).astype(x.dtype)
    make = _fused(xp, "T x, float32 by, float32 scale, float32 low", "T y", SNAP, "snap")
    return make(x, by if hasattr(by, "dtype") else np.float32(by), np.float32(scale), np.float32(low))


def halves(xp: Any, x: Array, best: Array, dtype: Any) -> Array:
    """Return attention weights: 2 ** (x - best), or 0 if that is less than 1/8."""
    if xp is np:
        return np.where(best - x < 4, np.exp2(x - best), 0).astype(dtype)
    out = xp.empty(x.shape, dtype)
    _fused(xp, "float32 x, float32 best", "T y", WEIGH, "halves")(x, best, out)
    return out


def add_up(xp: Any, results: Array, slots: Array, weights: Array) -> Array:
    """Return each token's sum of weight * result over its choices that have a slot."""
    (tokens, k), hidden = slots.shape, results.shape[-1]
    if xp is np:
        found = results.reshape(-1, hidden)[np.maximum(slots, 0)]
        return (found * np.where(slots < 0, 0, weights)[:, :, None]).sum(axis=1, dtype="f4").astype(results.dtype)
    out = xp.empty((tokens, hidden), results.dtype)
    inputs = "raw T results, raw int32 slots, raw float32 weights, int32 k, int32 hidden"
    _fused(xp, inputs, "T out", ADD_UP, "add_up")(results, slots, weights, np.int32(k), np.int32(hidden), out)
    return out


@cache
def _cublas(cupy: Any) -> ctypes.CDLL:
    """Return CuPy's cuBLAS library, because CuPy's own functions cannot be captured."""
    cublas = ctypes.CDLL(f"libcublas.so.{cupy.cuda.runtime.runtimeGetVersion() // 1000}")
    whole, long, pointer = ctypes.c_int, ctypes.c_longlong, ctypes.c_void_p
    matrix = [pointer, whole, whole, long]  # address, type, leading dimension, distance
    numbers, ends = [pointer, *[whole] * 5, pointer], [whole] * 3
    cublas.cublasGemmStridedBatchedEx.argtypes = [*numbers, *matrix, *matrix, pointer, *matrix, *ends]
    cublas.cublasSetStream_v2.argtypes = [pointer, pointer]
    return cublas


def multiply(xp: Any, left: Array, right: Array) -> Array:
    """Return the product of two matrices or stacks; float16 is summed in float32."""
    if xp is np:
        return left @ right
    left, (*stack, columns) = xp.ascontiguousarray(left), right.shape
    (*_, rows, inner), out = left.shape, xp.empty((*left.shape[:-1], columns), left.dtype)
    cublas, handle, kind = _cublas(xp), xp.cuda.device.get_cublas_handle(), TYPES[left.dtype.char]
    one, zero = np.ones(1, "f4"), np.zeros(1, "f4")
    cublas.cublasSetStream_v2(handle, xp.cuda.get_current_stream().ptr)
    # cuBLAS has columns where NumPy has rows, so it multiplies the transposed matrices in the other order.
    failed = cublas.cublasGemmStridedBatchedEx(
        *(handle, 0, 0, columns, rows, inner, one.ctypes.data),
        *(right.data.ptr, kind, columns, inner * columns),
        *(left.data.ptr, kind, inner, rows * inner),
        *(zero.ctypes.data, out.data.ptr, kind, columns, rows * columns),
        *(prod(stack[:-1]), COMPUTE_SINGLE, GEMM_DEFAULT),
    )
    if failed:
        raise RuntimeError(f"cuBLAS: error {failed}")
    return out
