"""Memory of the host device: pieces that several processes can map, and arrays of this process alone."""

from __future__ import annotations

import ctypes
import math
import mmap
import os
from contextlib import suppress
from typing import Any

import numpy as np

from ...errors import NotSupported


def _address_of(memory: Any) -> int:
    """Return where writable memory is; NumPy imports a module for that, which fails while the interpreter ends."""
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


class SharedMemory:
    """A piece of memory that several processes can map, as this one has mapped it."""

    ipc_handle = b""

    def __init__(self, fd: int, nbytes: int, *, owns_fd: bool = False, name: str = "") -> None:
        self.fd = fd
        self.nbytes = nbytes
        self.name = name  # of its descriptor in /proc
        self._owns_fd = owns_fd
        self._map = mmap.mmap(fd, nbytes)
        self.address = _address_of(self._map)

    def array(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Return the memory as an array, which keeps the mapping."""
        count = math.prod(shape)
        return np.frombuffer(self._map, dtype, count).reshape(shape) if count else np.empty(shape, dtype)

    def close_fd(self) -> None:
        """Close the descriptor; a second call does nothing."""
        if self._owns_fd:
            os.close(self.fd)
            self._owns_fd = False

    def close(self) -> None:
        """Unmap the memory, as soon as no array is over it; a second call does nothing."""
        with suppress(BufferError):  # raised while there are arrays; the mapping goes with the last one
            self._map.close()
        self.close_fd()


def allocate(nbytes: int, name: str) -> SharedMemory:
    """Return new memory, whose descriptor has a name in /proc."""
    fd = os.memfd_create(name)
    try:
        os.ftruncate(fd, nbytes)
        return SharedMemory(fd, nbytes, owns_fd=True, name=name)
    except BaseException:
        os.close(fd)
        raise


class Upload:
    """Bytes that kernels can address."""

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
    """`backends.device.Memory` in the memory of this process; peers map pieces of it by descriptor."""

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
        return memory  # its mapping goes with the last array over it

    def array(self, owner: SharedMemory, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        return owner.array(shape, dtype)

    def upload(self, data: bytes) -> Upload:
        return Upload(bytearray(data))

    def fill_zero(self, address: int, nbytes: int) -> None:
        ctypes.memset(address, 0, nbytes)

    def is_device_pointer(self, address: int) -> bool:
        return True  # kernels use the process' own memory

    def room(self, address: int, nbytes: int) -> int:
        return nbytes  # how much there is, only the program can say

    def pieces(self, address: int, nbytes: int) -> list[int]:
        return [nbytes]
