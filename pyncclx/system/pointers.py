"""Whose memory an address is: a question to the CUDA driver that needs no package and creates no context."""

from __future__ import annotations

import ctypes
import functools
from typing import Any


def is_device_pointer(address: int) -> bool:
    """Ask the CUDA driver, if there is one, whether `address` is device memory."""
    driver = _driver()
    if driver is None:
        return False
    memory_type = ctypes.c_uint(0)
    # Attribute 2 is CU_POINTER_ATTRIBUTE_MEMORY_TYPE, value 2 CU_MEMORYTYPE_DEVICE. A driver that nobody has
    # initialised answers with an error, and then there is no device memory either.
    status = driver.cuPointerGetAttribute(ctypes.byref(memory_type), 2, ctypes.c_uint64(address))
    return bool(status == 0 and memory_type.value == 2)


@functools.cache
def _driver() -> Any:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
