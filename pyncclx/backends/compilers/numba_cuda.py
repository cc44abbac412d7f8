"""Numba's CUDA target, of the package that `chosen` names: what kernels written in Python are made of.

With numba-cuda the GPU need not be there.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

from ...errors import NotSupported
from . import numba_llvm, numba_mlir
from .numba_packages import NUMBA_CUDA_MLIR, chosen


@functools.cache
def target() -> Any:
    """Return the module `numba.cuda`, or its counterpart, with all that its first compilation loads.

    Raises
    ------
    NotSupported
        Without it.
    """
    try:
        return chosen().load()
    except (ImportError, AttributeError) as error:  # the latter where NumPy is newer than Numba supports
        raise missing(chosen().distribution, error) from error


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
    of = types()
    signature = of.void(of.int64, of.int64, of.CPointer(of.int64), of.int64)
    return compile_code(fn, signature, symbol, architecture)


def element(name: str) -> Any:
    """Return Numba's type of a NumPy dtype."""
    return getattr(types(), name)


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
    declared = target().declare_device(symbol, signature, link=_device_library(library), abi="c")
    if chosen() is NUMBA_CUDA_MLIR:
        return numba_mlir.called(declared, symbol, returns=not signature.startswith("void"))
    return declared


@functools.cache
def address_function() -> Any:
    """Return ``address(array)`` for kernels: where an array's data begins, as uint64."""
    return _of_compiler().address_function()


@functools.cache
def pointer_function() -> Any:
    """Return ``pointer(address, dtype)`` for kernels: the elements at an address, to be indexed."""
    return _of_compiler().pointer_function()


def types() -> Any:
    """Return the module of Numba's types."""
    target()
    return importlib.import_module(chosen().types)


def errors() -> Any:
    """Return the module of Numba's exceptions."""
    return importlib.import_module(chosen().errors)


def _of_compiler() -> Any:
    target()
    return numba_mlir if chosen() is NUMBA_CUDA_MLIR else numba_llvm


@functools.cache
def _device_library(file: str) -> Any:
    """Compile a file of cuda/ to LTO-IR of the oldest architecture, which links to all newer ones."""
    nvrtc = importlib.import_module("pyncclx.backends.compilers.nvrtc")
    code = nvrtc.compile_cached(file, [], "sm_80", "-dlto").cubin
    return target().LTOIR(code, name="pyncclx")
