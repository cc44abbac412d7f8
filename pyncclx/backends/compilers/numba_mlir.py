"""Device functions for numba-cuda-mlir, as its extensions (twin of numba_llvm.py)."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from .numba_packages import NUMBA_CUDA_MLIR


def called(declared: Any, symbol: str, *, returns: bool) -> Any:
    """Return a device function that calls a declared function.

    numba-cuda-mlir 0.6 finds a declared function only under a plain name. Kernels can also use the result of this
    function as an attribute of a module.
    """
    parameters = ", ".join(f"a{i}" for i in range(len(declared.sig.args)))
    source = f"def {symbol}({parameters}):\n    {'return ' if returns else ''}declared({parameters})\n"
    namespace: dict[str, Any] = {"declared": declared}
    exec(source, namespace)
    return inlined(namespace[symbol])


def inlined(function: Callable[..., Any]) -> Any:
    """Return a device function that the compiler inlines into its callers."""
    return _cuda().jit(function, device=True, inline="always")


def address_function() -> Any:
    """Return ``address(array)``: the address of an array's data, as uint64."""
    uint64 = _types().uint64

    def address(array: Any) -> Any:
        return uint64(array.ctypes.data)

    return inlined(address)


def pointer_function() -> Any:
    """Return ``pointer(address, dtype)``: an indexable pointer to elements."""
    extending = importlib.import_module("numba_cuda_mlir.extending")
    types = _types()

    def pointer(address: Any, dtype: Any) -> Any:
        raise NotImplementedError("pointer() is for kernels")

    def typer(address: Any, dtype: Any) -> Any:
        element = dtype.instance_type if isinstance(dtype, types.NumberClass) else dtype.dtype
        return types.CPointer(element)(types.uint64, dtype)

    extending.type_callable(pointer)(lambda context: typer)
    extending.lower_builtin(pointer, types.Any, types.Any)(_generate_pointer)
    extending.refresh_registries()
    return pointer


def _generate_pointer(builder: Any, target: Any, args: Any, kwargs: Any) -> None:
    """Generate the conversion of an integer to a pointer."""
    llvm = importlib.import_module("numba_cuda_mlir._mlir.dialects.llvm")
    word = importlib.import_module("numba_cuda_mlir._mlir.extras.types").i64()
    convert = importlib.import_module("numba_cuda_mlir.lowering_utilities").convert
    address = convert(builder.load_var(args[0]), word)
    builder.store_var(target, llvm.inttoptr(res=llvm.PointerType.get(), arg=address))


def _cuda() -> Any:
    return importlib.import_module(NUMBA_CUDA_MLIR.cuda)


def _types() -> Any:
    return importlib.import_module(NUMBA_CUDA_MLIR.types)
