"""Memory of the host device: shared or private; and a check for use after free."""

from __future__ import annotations

import ctypes
import importlib
import math
import mmap
import os
from contextlib import suppress
from typing import Any

import numpy as np

from ...errors import NotSupported
from ...system import paths
from ...system.process import PerProcess
from ..compilers import gxx

# Index of PyDataMem_GetHandler in NumPy's C API.
_GET_HANDLER = 305


def _address_of(memory: Any) -> int:
    """Return the address of writable memory, without NumPy.

    NumPy would import a module, which fails while the interpreter shuts down.
    """
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


class SharedMemory:
    """Memory that several processes can map, mapped into this one."""

    ipc_handle = b""

    def __init__(self, fd: int, nbytes: int, *, owns_fd: bool = False, name: str = "") -> None:
        self.fd = fd
        self.nbytes = nbytes
        self.name = name  # name of the descriptor in /proc
        self._owns_fd = owns_fd
        self._map = mmap.mmap(fd, nbytes)
        self.address = _address_of(self._map)

    def array(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Return the memory as an array, which keeps the mapping alive."""
        count = math.prod(shape)
        return np.frombuffer(self._map, dtype, count).reshape(shape) if count else np.empty(shape, dtype)

    def close_fd(self) -> None:
        """Close the descriptor; a second call does nothing."""
        if self._owns_fd:
            os.close(self.fd)
            self._owns_fd = False

    def close(self) -> None:
        """Unmap the memory once no array uses it; a second call does nothing."""
        # `close` raises BufferError while arrays use the memory; the last array to be freed unmaps it.
        with suppress(BufferError):
            self._map.close()
        self.close_fd()


def allocate(nbytes: int, name: str) -> SharedMemory:
    """Allocate memory that processes can share; /proc shows its descriptor by `name`."""
    fd = os.memfd_create(name)
    try:
        os.ftruncate(fd, nbytes)
        return SharedMemory(fd, nbytes, owns_fd=True, name=name)
    except BaseException:
        os.close(fd)
        raise


class Upload:
    """Host memory that kernels read and write in place; freed with this object."""

    def __init__(self, data: bytearray | np.ndarray) -> None:
        self._data = data
        self.address = _address_of(data) if len(data) else 0


class Watch:
    """Words that kernels and Python code access at any time."""

    def __init__(self, nbytes: int) -> None:
        self.array = np.zeros((nbytes + 7) // 8, np.uint64)
        self.address = _address_of(self.array)

    def close(self) -> None:
        """Drop the words."""
        del self.array


class HostMemory:
    """`backends.device.Memory` in host memory, which peers map by descriptor."""

    def allocate_shared(self, nbytes: int) -> SharedMemory:
        return allocate(nbytes, "pyncclx")

    def map_peer(self, handle: int | bytes, nbytes: int) -> SharedMemory:
        if isinstance(handle, bytes):
            raise NotSupported("host memory travels by descriptor; CUDA IPC handles belong to GPUs")
        try:
            return SharedMemory(handle, nbytes)
        finally:
            os.close(handle)

    def allocate_watch(self, nbytes: int) -> Watch:
        return Watch(nbytes)

    def owner(self, memory: SharedMemory, retire: object) -> SharedMemory:
        # The last array over the memory unmaps it.
        return memory

    def array(self, owner: SharedMemory, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        return owner.array(shape, dtype)

    def upload(self, data: bytes) -> Upload:
        return Upload(bytearray(data))

    def fill_zero(self, address: int, nbytes: int) -> None:
        ctypes.memset(address, 0, nbytes)

    def is_device_pointer(self, address: int) -> bool:
        # Kernels use the process's own memory.
        return True

    def room(self, address: int, nbytes: int) -> int:
        # The host device cannot find out how much memory the program has allocated there.
        return nbytes

    def pieces(self, address: int, nbytes: int) -> list[int]:
        return [nbytes]


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
    """Make NumPy overwrite the memory of each array that it frees from now on.

    This reveals a use after free, because NumPy arrays are the device arrays of the host device. NumPy lets a program
    replace the functions that allocate and free their memory (NEP 49), but only in one thread. So the free function is
    replaced in NumPy's default table, which all threads use (``cuda/host/freed.h``).
    """
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
