"""Device functions for numba-cuda, as LLVM instructions (twin of numba_mlir.py)."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from .numba_packages import NUMBA_CUDA


def address_function() -> Any:
    """Return ``address(array)``: the address of an array's data, as uint64."""
    types = _types()

    def address(typing: Any, array: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            data = context.make_array(signature.args[0])(context, builder, args[0]).data
            return builder.ptrtoint(data, context.get_value_type(types.uint64))

        return types.uint64(array), generate

    return _intrinsic(address)


def pointer_function() -> Any:
    """Return ``pointer(address, dtype)``: an indexable pointer to elements."""
    types = _types()

    def pointer(typing: Any, address: Any, dtype: Any) -> Any:
        element = dtype.instance_type if isinstance(dtype, types.NumberClass) else dtype.dtype

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

        return types.CPointer(element)(types.uint64, dtype), generate

    return _intrinsic(pointer)


def _types() -> Any:
    return importlib.import_module(NUMBA_CUDA.types)


def _intrinsic(function: Callable[..., Any]) -> Any:
    descriptor = importlib.import_module("numba.cuda.descriptor").cuda_target
    intrinsic = importlib.import_module("numba.cuda.extending").intrinsic(function)
    # The refreshes make the intrinsic visible to a kernel whose typing is in progress.
    descriptor.typing_context.refresh()
    descriptor.target_context.refresh()
    return intrinsic
