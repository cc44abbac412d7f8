"""Query the CUDA driver by ctypes, without other packages and without a context.

The module also holds the number of this process's GPU. It is the GPU that the program chose, otherwise that of its
first device array, otherwise the current one.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from typing import Any

from .process import held

_NAME_NBYTES = 256
_MEMORY_TYPE, _DEVICE = 2, 2  # CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_MEMORYTYPE_DEVICE
_IS_MANAGED, _ORDINAL = 8, 9  # CU_POINTER_ATTRIBUTE_IS_MANAGED, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL

_chosen: list[int] = held([])


def version() -> str | None:
    """Return the newest CUDA version that the driver supports, such as "13.0".

    None without a driver.
    """
    found = ctypes.c_int(0)
    if _initialised() is None or _initialised().cuDriverGetVersion(ctypes.byref(found)) != 0:
        return None
    return f"{found.value // 1000}.{found.value % 1000 // 10}"


def is_there() -> bool:
    """Return whether there is a driver with a GPU, so that device memory may exist."""
    return _initialised() is not None


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


def pci_address(ordinal: int) -> str:
    """Return the PCI address of a GPU, in the form of /sys/bus/pci/devices."""
    text = ctypes.create_string_buffer(_NAME_NBYTES)
    _initialised().cuDeviceGetPCIBusId(text, _NAME_NBYTES, ordinal)
    return text.value.decode().lower()


def can_access(ordinal: int, peer: int) -> bool:
    """Return whether a GPU can access the memory of a peer GPU."""
    found = ctypes.c_int(0)
    return bool(_initialised().cuDeviceCanAccessPeer(ctypes.byref(found), ordinal, peer) == 0 and found.value)


def is_device_pointer(address: int) -> bool:
    """Return whether an address is device memory.

    False without a driver, or before a program has initialised it.
    """
    library = _library()
    if library is None:
        return False
    memory_type = ctypes.c_uint(0)
    status = library.cuPointerGetAttribute(ctypes.byref(memory_type), _MEMORY_TYPE, ctypes.c_uint64(address))
    return bool(status == 0 and memory_type.value == _DEVICE)


def gpu_of_memory(address: int) -> int | None:
    """Return the number of the GPU whose memory is at an address.

    Return None for memory that the host can use, including managed memory, and without a driver or before the program
    has initialised it.
    """
    library = _library()
    return None if library is None else _attributes.gpu(library, address)


class _Attributes(threading.local):
    """The driver's attributes of an address, in ctypes variables made once per thread."""

    def __init__(self) -> None:
        self._memory_type, self._is_managed, self._ordinal = ctypes.c_uint(), ctypes.c_uint(), ctypes.c_int()
        self._wanted = (ctypes.c_int * 3)(_MEMORY_TYPE, _IS_MANAGED, _ORDINAL)
        answers = self._memory_type, self._is_managed, self._ordinal
        self._places = (ctypes.c_void_p * 3)(*map(ctypes.addressof, answers))

    def gpu(self, library: Any, address: int) -> int | None:
        # The driver returns zero for all attributes of memory that it has neither allocated nor registered.
        status = library.cuPointerGetAttributes(3, self._wanted, self._places, ctypes.c_uint64(address))
        on_gpu = status == 0 and self._memory_type.value == _DEVICE and not self._is_managed.value & 0xFF
        return self._ordinal.value if on_gpu else None


_attributes = _Attributes()


@functools.cache
def _initialised() -> Any:
    """Return the initialised driver; None without a driver or a GPU."""
    library = _library()
    return library if library is not None and library.cuInit(0) == 0 else None


@functools.cache
def _library() -> Any:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


def choose_gpu(ordinal: int) -> None:
    """Set the GPU of this process; a later choice replaces it."""
    _chosen[:] = [ordinal]


def chosen_gpu() -> int | None:
    """Return the chosen GPU; None if there is none yet."""
    return _chosen[0] if _chosen else None
