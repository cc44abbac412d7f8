"""Queries of the CUDA driver, through ctypes: they need no package and make no context."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

_NAME_NBYTES = 256
_MEMORY_TYPE, _DEVICE = 2, 2  # CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_MEMORYTYPE_DEVICE


def version() -> str | None:
    """Return the newest CUDA version that the driver supports, such as "13.0"; None without a driver."""
    found = ctypes.c_int(0)
    if _initialised() is None or _initialised().cuDriverGetVersion(ctypes.byref(found)) != 0:
        return None
    return f"{found.value // 1000}.{found.value % 1000 // 10}"


def count() -> int:
    """Return the number of GPUs that this process can use."""
    found = ctypes.c_int(0)
    if _initialised() is None or _initialised().cuDeviceGetCount(ctypes.byref(found)) != 0:
        return 0
    return found.value


def name(ordinal: int) -> str:
    """Return the name of a GPU."""
    text = ctypes.create_string_buffer(_NAME_NBYTES)
    _initialised().cuDeviceGetName(text, _NAME_NBYTES, ordinal)
    return text.value.decode()


def can_access(ordinal: int, peer: int) -> bool:
    """Return whether a GPU can use the memory of another one."""
    found = ctypes.c_int(0)
    return bool(_initialised().cuDeviceCanAccessPeer(ctypes.byref(found), ordinal, peer) == 0 and found.value)


def is_device_pointer(address: int) -> bool:
    """Return whether `address` is device memory; False without a driver, or before a program has initialised it."""
    library = _library()
    if library is None:
        return False
    memory_type = ctypes.c_uint(0)
    status = library.cuPointerGetAttribute(ctypes.byref(memory_type), _MEMORY_TYPE, ctypes.c_uint64(address))
    return bool(status == 0 and memory_type.value == _DEVICE)


@functools.cache
def _initialised() -> Any:
    """Return the driver after cuInit; None without one, or without a GPU."""
    library = _library()
    return library if library is not None and library.cuInit(0) == 0 else None


@functools.cache
def _library() -> Any:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
