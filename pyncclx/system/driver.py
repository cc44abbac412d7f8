"""Questions to the CUDA driver that need no package and create no context."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

NAME_NBYTES = 256


@functools.cache
def _driver() -> Any:
    """The driver, initialised; None without one, or without a GPU."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    return driver if driver.cuInit(0) == 0 else None


def version() -> str | None:
    """The CUDA version that the driver speaks, such as "13.0"; None without a driver."""
    found = ctypes.c_int(0)
    if _driver() is None or _driver().cuDriverGetVersion(ctypes.byref(found)) != 0:
        return None
    return f"{found.value // 1000}.{found.value % 1000 // 10}"


def count() -> int:
    """How many GPUs this process sees."""
    found = ctypes.c_int(0)
    if _driver() is None or _driver().cuDeviceGetCount(ctypes.byref(found)) != 0:
        return 0
    return found.value


def name(ordinal: int) -> str:
    """The name of a GPU."""
    text = ctypes.create_string_buffer(NAME_NBYTES)
    _driver().cuDeviceGetName(text, NAME_NBYTES, ordinal)
    return text.value.decode()


def can_access(ordinal: int, peer: int) -> bool:
    """Whether a GPU can use the memory of another one."""
    found = ctypes.c_int(0)
    return bool(_driver().cuDeviceCanAccessPeer(ctypes.byref(found), ordinal, peer) == 0 and found.value)
