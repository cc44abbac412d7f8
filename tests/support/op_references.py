"""References of the built-in operators in NumPy: from the arrays of all ranks, in rank order, to the result.

They fold from the left, half types in float32, which are rounded once.
"""

import functools

import numpy as np

from pyncclx.operators.linked import HALVES


def _fold(pairwise, arrays):
    dtype = arrays[0].dtype
    wide = np.dtype(np.float32) if dtype.name in HALVES else dtype
    folded = functools.reduce(pairwise, (array.astype(wide) for array in arrays))
    return np.asarray(folded).astype(dtype)


def _average(arrays, ranks):
    dtype = arrays[0].dtype
    wide = np.dtype(np.float32) if dtype.name in HALVES else dtype
    total = _fold(np.add, [array.astype(wide) for array in arrays])
    size = total.real.dtype.type(ranks)
    average = np.empty_like(total)
    average.real = total.real / size  # each part by itself: NumPy divides complex numbers by a reciprocal
    if dtype.kind == "c":
        average.imag = total.imag / size
    return average.astype(dtype)


def _product(left, right):
    if left.dtype.kind != "c":
        return np.multiply(left, right)
    product = np.empty_like(left)  # NumPy fuses a multiplication and an addition where the CPU can
    product.real = left.real * right.real - left.imag * right.imag
    product.imag = left.real * right.imag + left.imag * right.real
    return product


def _smaller(left, right):
    return np.where((right < left) | np.isnan(right), right, left)  # zeros: NumPy's minimum may choose another one


def _larger(left, right):
    return np.where((left < right) | np.isnan(right), right, left)


def _better(less, left, right):
    """Choose between two arrays of (value, index); equal values, and NaN, keep the lower index."""
    names = left.dtype.names
    if names is None:
        raise TypeError(f"expecting a structured dtype of (value, index), got {left.dtype}")
    value, index = names[0], names[1]
    none, other_none = np.isnan(left[value]), np.isnan(right[value])
    tie = ((left[value] == right[value]) | (none & other_none)) & (right[index] < left[index])
    return np.where(less(right[value], left[value]) | (other_none & ~none) | tie, right, left)


_PAIRWISE = {
    "SUM": np.add,
    "PROD": _product,
    "MIN": _smaller,
    "MAX": _larger,
    "LAND": np.logical_and,
    "LOR": np.logical_or,
    "LXOR": np.logical_xor,
    "BAND": np.bitwise_and,
    "BOR": np.bitwise_or,
    "BXOR": np.bitwise_xor,
    "MINLOC": functools.partial(_better, np.less),
    "MAXLOC": functools.partial(_better, np.greater),
}


def reference(op, arrays, ranks=None):
    """The result of an operator of `pyncclx.operators.ops`; an average is that of so many ranks, or of the arrays."""
    return _average(arrays, ranks or len(arrays)) if op.name == "AVG" else _fold(_PAIRWISE[op.name], arrays)
