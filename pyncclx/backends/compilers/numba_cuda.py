"""Numba's CUDA target, for a GPU that need not be there: what kernels written in Python are made of."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

from ...errors import NotSupported


@functools.cache
def target() -> Any:
    """Return the module `numba.cuda`, with all that its first compilation loads.

    Raises
    ------
    NotSupported
        Without it.
    """
    try:
        cuda = importlib.import_module("numba.cuda")
        importlib.import_module("numba.cuda.descriptor").cuda_target.typing_context.refresh()
        importlib.import_module("numba.cuda.types")
        importlib.import_module("numba.cuda.np.numpy_support")
    except (ImportError, AttributeError) as error:  # the latter where NumPy is newer than Numba supports
        raise missing("numba-cuda", error) from error
    return cuda


def missing(package: str, error: Exception) -> NotSupported:
    """Return the error for code that needs Numba, or its CUDA target, where `package` cannot be imported."""
    return NotSupported(
        f"operators and kernels written in Python are compiled by Numba, and {package} cannot be imported ({error}): "
        "pip install 'pyncclx[numba13]', or numba12 for CUDA 12, which has the versions that work together"
    )


def compile_code(fn: Callable[..., None], signature: Any, symbol: str, architecture: str) -> bytes:
    """Compile a function to LTO-IR for `architecture` ("sm_90"), to be called from C++ as `symbol`."""
    major_minor = divmod(int(architecture.removeprefix("sm_")), 10)
    code, _ = target().compile(fn, signature, cc=major_minor, abi="c", abi_info={"abi_name": symbol}, output="ltoir")
    return bytes(code)


def collective(fn: Callable[..., None], symbol: str, architecture: str) -> bytes:
    """Compile ``void symbol(team, workspace, args, call)``: `args` are 64-bit integers, the others numbers."""
    types = _types()
    signature = types.void(types.int64, types.int64, types.CPointer(types.int64), types.int64)
    return compile_code(fn, signature, symbol, architecture)


def element(name: str) -> Any:
    """Return Numba's type of a NumPy dtype."""
    return getattr(_types(), name)


def inlined(fn: Callable[..., Any]) -> Any:
    """Return a device function that becomes a part of each function that calls it."""
    return target().jit(fn, device=True, inline="always")


@functools.cache
def device_function(symbol: str, signature: str, library: str) -> Any:
    """Declare a function of C linkage for Numba's kernels; those that use it are linked with a file of cuda/.

    Raises
    ------
    NotSupported
        Without Numba's CUDA target.
    """
    return target().declare_device(symbol, signature, link=_device_library(library), abi="c")


@functools.cache
def address_function() -> Any:
    """Return ``address(array)`` for Numba's kernels: where an array's data begins, as uint64."""
    types = _types()

    def address(typing: Any, array: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            data = context.make_array(signature.args[0])(context, builder, args[0]).data
            return builder.ptrtoint(data, context.get_value_type(types.uint64))

        return types.uint64(array), generate

    return _intrinsic(address)


@functools.cache
def pointer_function() -> Any:
    """Return ``pointer(address, dtype)`` for Numba's kernels: the elements at an address, to be indexed."""
    types = _types()

    def pointer(typing: Any, address: Any, dtype: Any) -> Any:
        element = dtype.instance_type if isinstance(dtype, types.NumberClass) else dtype.dtype

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

        return types.CPointer(element)(types.uint64, dtype), generate

    return _intrinsic(pointer)


def _types() -> Any:
    target()
    return importlib.import_module("numba.cuda.types")


def _intrinsic(function: Callable[..., Any]) -> Any:
    descriptor = importlib.import_module("numba.cuda.descriptor").cuda_target
    intrinsic = importlib.import_module("numba.cuda.extending").intrinsic(function)
    descriptor.typing_context.refresh()  # a kernel may be in the middle of being typed
    descriptor.target_context.refresh()
    return intrinsic


@functools.cache
def _device_library(file: str) -> Any:
    """Compile a file of cuda/ to LTO-IR of the oldest architecture, which links to all newer ones."""
    nvrtc = importlib.import_module("pyncclx.backends.compilers.nvrtc")
    code = nvrtc.compile_cached(file, [], "sm_80", "-dlto").cubin
    return target().LTOIR(code, name="pyncclx")
