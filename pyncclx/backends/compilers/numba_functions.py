"""Operators and row transforms in Python, compiled by Numba for GPUs or this CPU."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from . import numba_cuda
from .numba_packages import chosen

# kMostTransformArrays of cuda/elements/row_transform.cuh
MOST_ARRAYS = 4


class RowTypes(NamedTuple):
    """Types of a row transform: an element, its result, and the arrays' elements."""

    element: np.dtype[Any]
    result: np.dtype[Any]
    arrays: tuple[np.dtype[Any], ...]


#: The type of an operator's elements, or the types of a row transform.
Types = np.dtype[Any] | RowTypes


def symbol_of(types: Types) -> str:
    """Return the function's name in cuda/elements/user_op.cuh or row_transform.cuh."""
    return "pyncclx_row_transform" if isinstance(types, RowTypes) else "pyncclx_user_op"


# The result is cached, because all kernels that call the function use the same code.
@cache
def for_gpu(fn: Callable[..., Any], dtype: Types, architecture: str) -> bytes:
    """Compile an operator or row transform to LTO-IR for an architecture.

    `architecture` is a GPU's, such as "sm_90".

    Raises
    ------
    NotSupported
        If Numba's CUDA target cannot be imported.
    TypeError
        If Numba cannot compile the function.
    """
    cuda = numba_cuda.target()
    types = numba_cuda.types()
    # The function is inlined before type inference. Otherwise Numba would compile a call of it, and query the current
    # GPU for that even if `cc` is given.
    entry = _entry(cuda.jit(fn, device=True, inline="always"), fn, dtype)
    with _explained(fn, dtype, numba_cuda.errors()):
        operands = _operands(dtype, types, chosen().from_dtype)
        return numba_cuda.compile_code(entry, types.void(*operands), symbol_of(dtype), architecture)


@cache
def for_host(fn: Callable[..., Any], dtype: Types) -> Any:
    """Compile an operator or row transform for this CPU, to a Numba callback.

    The code is at the callback's `address`, and lives as long as the callback.

    Raises
    ------
    NotSupported
        If Numba cannot be imported.
    TypeError
        If Numba cannot compile the function.
    """
    try:
        numba = importlib.import_module("numba")
        from_dtype = importlib.import_module("numba.np.numpy_support").from_dtype
    except ImportError as error:
        raise numba_cuda.missing("numba", error) from error
    # With NumPy's error model, a division by zero raises nothing, as on a GPU.
    entry = _entry(numba.njit(fn, error_model="numpy"), fn, dtype)
    with _explained(fn, dtype, importlib.import_module("numba.core.errors")):
        operands = _operands(dtype, numba.types, from_dtype)
        return numba.cfunc(numba.types.void(*operands), error_model="numpy")(entry)


def _operands(dtype: Types, types: Any, from_dtype: Callable[[Any], Any]) -> tuple[Any, ...]:
    """Return the argument types: pointers to operands and result, or row arguments.

    Numba passes a record by its address already, so records need no pointer.
    """
    if isinstance(dtype, RowTypes):
        element, result, *arrays = (
            types.CPointer(from_dtype(each)) for each in (dtype.element, dtype.result, *dtype.arrays)
        )
        unused = [types.CPointer(types.uint8)] * (MOST_ARRAYS - len(arrays))
        return (element, result, types.int64, types.int64, *arrays, *unused)
    if dtype.names:
        operand = from_dtype(dtype)
    else:
        operand = types.CPointer(types.uint8 if dtype.kind == "b" else from_dtype(dtype))
    return operand, operand, operand


def _entry(jitted: Any, fn: Callable[..., Any], dtype: Types) -> Callable[..., None]:
    """Return the function to compile: `fn` for records, a wrapper for other types."""
    if isinstance(dtype, RowTypes):
        return _row_entries(jitted)[len(dtype.arrays)]
    if dtype.names:
        return fn

    def scalars(a: Any, b: Any, result: Any) -> None:
        result[0] = jitted(a[0], b[0])

    def truths(a: Any, b: Any, result: Any) -> None:
        result[0] = 1 if jitted(a[0] != 0, b[0] != 0) else 0

    return truths if dtype.kind == "b" else scalars


def _row_entries(jitted: Any) -> list[Callable[..., None]]:
    """Return the functions to compile for row transforms with 0, 1, … 4 arrays.

    All take four arrays, and pass the first ones to the transform.
    """

    def none(x: Any, result: Any, row: Any, column: Any, a: Any, b: Any, c: Any, d: Any) -> None:
        result[0] = jitted(x[0], row, column)

    def one(x: Any, result: Any, row: Any, column: Any, a: Any, b: Any, c: Any, d: Any) -> None:
        result[0] = jitted(x[0], row, column, a)

    def two(x: Any, result: Any, row: Any, column: Any, a: Any, b: Any, c: Any, d: Any) -> None:
        result[0] = jitted(x[0], row, column, a, b)

    def three(x: Any, result: Any, row: Any, column: Any, a: Any, b: Any, c: Any, d: Any) -> None:
        result[0] = jitted(x[0], row, column, a, b, c)

    def four(x: Any, result: Any, row: Any, column: Any, a: Any, b: Any, c: Any, d: Any) -> None:
        result[0] = jitted(x[0], row, column, a, b, c, d)

    return [none, one, two, three, four]


@contextlib.contextmanager
def _explained(fn: Callable[..., Any], dtype: Types, errors: Any) -> Iterator[None]:
    """Turn Numba's error into a TypeError that names the function and its types."""
    try:
        yield
    except (errors.NumbaError, NotImplementedError) as error:
        # NotImplementedError: Numba does not support the type of a field.
        if isinstance(dtype, RowTypes):
            what, arguments = "Transform", "(x, row, column, …)" if dtype.arrays else "(x, row, column)"
            types = f"{dtype.element}, to {dtype.result}"
        else:
            what, arguments, types = "Op", "(a, b, out)" if dtype.names else "(a, b)", str(dtype)
        raise TypeError(f"{what}: Numba cannot compile {fn.__name__}{arguments} for {types}:\n{error}") from error
