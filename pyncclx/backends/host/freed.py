"""Overwrite the memory of freed NumPy arrays, so that a use after free is seen.

NumPy's arrays are the device arrays of the host device. NumPy lets a program replace the functions that allocate and
free their memory (NEP 49), but for one thread at a time. So this module replaces the free function in NumPy's default
table, which all threads use (``cuda/host/freed.h``).
"""

from __future__ import annotations

import ctypes
import importlib
from typing import Any

from ...system import paths
from ...system.process import PerProcess
from ..compilers import gxx

# Index of PyDataMem_GetHandler in NumPy's C API.
_GET_HANDLER = 305


class _Handler(ctypes.Structure):
    """`PyDataMem_Handler` of NumPy's C API."""

    _fields_ = [
        ("name", ctypes.c_char * 127),
        ("version", ctypes.c_uint8),
        ("context", ctypes.c_void_p),
        ("malloc", ctypes.c_void_p),
        ("calloc", ctypes.c_void_p),
        ("realloc", ctypes.c_void_p),
        ("free", ctypes.c_void_p),
    ]


def overwrite_freed() -> None:
    """Make NumPy overwrite the memory of each array that it frees from now on."""
    _LIBRARY.get()


def _replace_free() -> ctypes.CDLL:
    library = ctypes.CDLL(str(gxx.compile_cached(paths.CUDA_DIR / "host" / "freed.h", ())))
    handler = _handler()
    ctypes.c_void_p.in_dll(library, "emulator_free").value = handler.free
    handler.free = ctypes.cast(library.emulator_overwrite_and_free, ctypes.c_void_p).value
    return library


def _handler() -> _Handler:
    """Return NumPy's own table of functions, to change it in place."""
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.argtypes, pointer_of.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p
    functions = (ctypes.c_size_t * (_GET_HANDLER + 1)).from_address(pointer_of(_c_api(), None))
    get_handler = ctypes.PYFUNCTYPE(ctypes.py_object)(functions[_GET_HANDLER])
    return _Handler.from_address(pointer_of(get_handler(), b"mem_handler"))


def _c_api() -> Any:
    try:
        module = importlib.import_module("numpy._core._multiarray_umath")
    # NumPy before version 2.
    except ModuleNotFoundError:
        module = importlib.import_module("numpy.core._multiarray_umath")
    return module._ARRAY_API


# The library is never unloaded, because NumPy keeps calling it.
_LIBRARY = PerProcess(_replace_free, lasting=True)
