"""Numba's CUDA target, which compiles kernels written in Python.

`numba_packages.chosen` chooses the package. With numba-cuda, no GPU is needed.
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
    """Return the module `numba.cuda` or its counterpart, ready to compile.

    Raises
    ------
    NotSupported
        If Numba's CUDA target cannot be imported.
    """
    try:
        return chosen().load()
    except (ImportError, AttributeError) as error:
        # AttributeError: NumPy is newer than Numba supports.
        raise missing(chosen().distribution, error) from error


def missing(package: str, error: Exception) -> NotSupported:
    """Return the error for a Numba package that cannot be imported."""
    return NotSupported(
        f"operators and kernels written in Python are compiled by Numba, and {package} cannot be imported ({error}): "
        "pip install 'pyncclx[numba13]', or numba12 for CUDA 12, which has the versions that work together"
    )


def compile_code(fn: Callable[..., None], signature: Any, symbol: str, architecture: str) -> bytes:
    """Compile a function to LTO-IR for an architecture, callable from C++ as `symbol`.

    `architecture` is a GPU's, such as "sm_90".
    """
    major_minor = divmod(int(architecture.removeprefix("sm_")), 10)
    code, _ = target().compile(fn, signature, cc=major_minor, abi="c", abi_info={"abi_name": symbol}, output="ltoir")
    return bytes(code)


def collective(fn: Callable[..., None], symbol: str, architecture: str) -> bytes:
    """Compile ``void symbol(team, workspace, args, call)`` to LTO-IR.

    `args` points to 64-bit integers; the other parameters are 64-bit integers.
    """
    of = types()
    signature = of.void(of.int64, of.int64, of.CPointer(of.int64), of.int64)
    return compile_code(fn, signature, symbol, architecture)


def element(name: str) -> Any:
    """Return Numba's type of a NumPy dtype."""
    return getattr(types(), name)


def inlined(fn: Callable[..., Any]) -> Any:
    """Return a device function that the compiler inlines into its callers."""
    return target().jit(fn, device=True, inline="always")


@functools.cache
def device_function(symbol: str, signature: str, library: str) -> Any:
    """Declare a function with C linkage for Numba kernels.

    Kernels that use it are linked with the file `library` of cuda/.

    Raises
    ------
    NotSupported
        If Numba's CUDA target cannot be imported.
    """
    declared = target().declare_device(symbol, signature, link=_device_library(library), abi="c")
    if chosen() is NUMBA_CUDA_MLIR:
        return numba_mlir.called(declared, symbol, returns=not signature.startswith("void"))
    return declared


@functools.cache
def address_function() -> Any:
    """Return ``address(array)`` for kernels: the address of the data, as uint64."""
    return _of_compiler().address_function()


@functools.cache
def pointer_function() -> Any:
    """Return ``pointer(address, dtype)`` for kernels: a pointer that can be indexed."""
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
    """Compile a file of cuda/ to LTO-IR for sm_80, which links on newer architectures."""
    nvrtc = importlib.import_module("pyncclx.backends.compilers.nvrtc")
    code = nvrtc.compile_cached(file, [], "sm_80", "-dlto").cubin
    return target().LTOIR(code, name="pyncclx")
