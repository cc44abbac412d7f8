"""Python functions as code that kernels call: compiled by Numba, for a GPU that need not be there, or for this CPU."""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from ..errors import NotSupported

MOST_ARRAYS = 4  # kMostTransformArrays of cuda/elements/row_transform.cuh


class RowTypes(NamedTuple):
    """What a row transform takes and gives: the types of an element, of what becomes of it, and of arrays."""

    element: np.dtype[Any]
    result: np.dtype[Any]
    arrays: tuple[np.dtype[Any], ...]


Types = np.dtype[Any] | RowTypes  # of an operator's elements, or a row transform's


def symbol_of(types: Types) -> str:
    """What kernels call a function by: in cuda/elements/user_op.cuh, or cuda/elements/row_transform.cuh."""
    return "pyncclx_row_transform" if isinstance(types, RowTypes) else "pyncclx_user_op"


def for_gpu(fn: Callable[..., Any], dtype: Types, architecture: str) -> bytes:
    """An operator or row transform, as kernels call it, as LTO-IR for `architecture` ("sm_90").

    Raises
    ------
    NotSupported
        Without Numba's CUDA target.
    TypeError
        Numba cannot compile it.
    """
    try:
        cuda = _cuda()
        types = importlib.import_module("numba.cuda.types")
        from_dtype = importlib.import_module("numba.cuda.np.numpy_support").from_dtype
    except ImportError as error:
        raise _missing("numba-cuda", error) from error
    # Inlined before types are inferred: a call would ask for the current GPU, whatever `cc` says.
    operands = _operands(dtype, types, from_dtype)
    entry = _entry(cuda.jit(fn, device=True, inline="always"), fn, dtype)
    number = int(architecture.removeprefix("sm_"))
    with _explained(fn, dtype):
        code, _ = cuda.compile(
            entry,
            types.void(*operands),
            cc=divmod(number, 10),
            abi="c",
            abi_info={"abi_name": symbol_of(dtype)},
            output="ltoir",
        )
    return bytes(code)


def for_host(fn: Callable[..., Any], dtype: Types) -> Any:
    """The same as a Numba callback; its `address` is that of the code, which lives as long as it does.

    Raises
    ------
    NotSupported
        Without Numba.
    TypeError
        Numba cannot compile it.
    """
    try:
        numba = importlib.import_module("numba")
        from_dtype = importlib.import_module("numba.np.numpy_support").from_dtype
    except ImportError as error:
        raise _missing("numba", error) from error
    operands = _operands(dtype, numba.types, from_dtype)
    # As on a GPU: a division by zero raises nothing.
    entry = _entry(numba.njit(fn, error_model="numpy"), fn, dtype)
    with _explained(fn, dtype):
        return numba.cfunc(numba.types.void(*operands), error_model="numpy")(entry)


def collective(fn: Callable[..., None], symbol: str, architecture: str) -> bytes:
    """``void symbol(team, workspace, args, call)`` as LTO-IR: `args` are 64-bit integers, the others numbers."""
    cuda, types = _cuda(), _types()
    signature = types.void(types.int64, types.int64, types.CPointer(types.int64), types.int64)
    number = int(architecture.removeprefix("sm_"))
    code, _ = cuda.compile(
        fn, signature, cc=divmod(number, 10), abi="c", abi_info={"abi_name": symbol}, output="ltoir"
    )
    return bytes(code)


def element(name: str) -> Any:
    """Numba's type of a NumPy dtype."""
    return getattr(_types(), name)


def inlined(fn: Callable[..., Any]) -> Any:
    """A function that becomes a part of each that calls it."""
    return _cuda().jit(fn, device=True, inline="always")


def check_present() -> None:
    """Raise NotSupported without Numba's CUDA target."""
    _cuda()


@functools.cache
def device_function(symbol: str, signature: str, library: str) -> Any:
    """Declare a function of C linkage for Numba's kernels; those that use it are linked with a file of cuda/.

    Raises
    ------
    NotSupported
        Without Numba's CUDA target.
    """
    return _cuda().declare_device(symbol, signature, link=_device_library(library), abi="c")


@functools.cache
def address_function() -> Any:
    """``address(array)`` for Numba's kernels: where an array's data begins, as uint64."""
    types = _types()

    def address(typing: Any, array: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            data = context.make_array(signature.args[0])(context, builder, args[0]).data
            return builder.ptrtoint(data, context.get_value_type(types.uint64))

        return types.uint64(array), generate

    return _intrinsic(address)


@functools.cache
def pointer_function() -> Any:
    """``pointer(address, dtype)`` for Numba's kernels: the elements at an address, to be indexed."""
    types = _types()

    def pointer(typing: Any, address: Any, dtype: Any) -> Any:
        element = dtype.instance_type if isinstance(dtype, types.NumberClass) else dtype.dtype

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

        return types.CPointer(element)(types.uint64, dtype), generate

    return _intrinsic(pointer)


def _types() -> Any:
    _cuda()
    return importlib.import_module("numba.cuda.types")


def _intrinsic(function: Callable[..., Any]) -> Any:
    target = importlib.import_module("numba.cuda.descriptor").cuda_target
    intrinsic = importlib.import_module("numba.cuda.extending").intrinsic(function)
    target.typing_context.refresh()  # a kernel may be in the middle of being typed
    target.target_context.refresh()
    return intrinsic


@functools.cache
def _device_library(file: str) -> Any:
    """A file of cuda/ as LTO-IR of the oldest architecture, which links to all newer ones."""
    nvrtc = importlib.import_module("pyncclx.backends.nvrtc")
    code = nvrtc.compile_cached(file, [], "sm_80", "-dlto").cubin
    return _cuda().LTOIR(code, name="pyncclx")


@functools.cache
def _cuda() -> Any:
    """Numba's CUDA target, with all that its first compilation loads."""
    try:
        cuda = importlib.import_module("numba.cuda")
        importlib.import_module("numba.cuda.descriptor").cuda_target.typing_context.refresh()
    except (ImportError, AttributeError) as error:  # the latter where NumPy is newer than it knows
        raise _missing("numba-cuda", error) from error
    return cuda


def _operands(dtype: Types, types: Any, from_dtype: Callable[[Any], Any]) -> tuple[Any, ...]:
    """Pointers to the operands and the result: a record is one already. For a row transform see row_transform.cuh."""
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
    """What is compiled: the function itself for records, for scalars one that reads and writes them."""
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
    """What is compiled of a row transform with 0, 1 … arrays: of the four the others are no one's."""

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
def _explained(fn: Callable[..., Any], dtype: Types) -> Iterator[None]:
    """Turn Numba's refusal into a TypeError that says what was to be compiled, for what; Numba says where."""
    errors = importlib.import_module("numba.core.errors")
    try:
        yield
    except errors.NumbaError as error:
        if isinstance(dtype, RowTypes):
            what, arguments = "Transform", "(x, row, column, …)" if dtype.arrays else "(x, row, column)"
            types = f"{dtype.element}, to {dtype.result}"
        else:
            what, arguments, types = "Op", "(a, b, out)" if dtype.names else "(a, b)", str(dtype)
        raise TypeError(f"{what}: Numba cannot compile {fn.__name__}{arguments} for {types}:\n{error}") from error


def _missing(package: str, error: Exception) -> NotSupported:
    return NotSupported(
        f"operators and kernels written in Python are compiled by Numba, and {package} cannot be imported ({error}): "
        "pip install 'pyncclx[numba13]', or numba12 for CUDA 12, which has the versions that work together"
    )
