"""Memory of the host device, and its streams, in which everything is over at once."""

from __future__ import annotations

import ctypes
import math
import mmap
import os
from collections.abc import Callable
from typing import Any

import numpy as np


class Memory:
    """A piece of memory that several processes can map, as this one has it."""

    ipc_handle = b""

    def __init__(self, fd: int, nbytes: int, *, owns_fd: bool = False) -> None:
        self.fd = fd
        self.nbytes = nbytes
        self._owns_fd = owns_fd
        self._map = mmap.mmap(fd, nbytes)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))

    def array(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """It as an array, which keeps the mapping."""
        count = math.prod(shape)
        return np.frombuffer(self._map, dtype, count).reshape(shape) if count else np.empty(shape, dtype)

    def close_fd(self) -> None:
        """Close the descriptor; a second call does nothing."""
        if self._owns_fd:
            os.close(self.fd)
            self._owns_fd = False

    def close(self) -> None:
        """Unmap it; a second call does nothing."""
        self._map.close()
        self.close_fd()


class Upload:
    """Bytes that kernels read."""

    def __init__(self, data: bytes) -> None:
        self._array = np.frombuffer(data, np.uint8)
        self.address = self._array.ctypes.data


class Temporary:
    """Memory for one operation."""

    def __init__(self, nbytes: int) -> None:
        self._array = np.empty(nbytes, np.uint8)
        self.address = self._array.ctypes.data


class Watch:
    """Memory that the host and kernels see at once."""

    def __init__(self, nbytes: int) -> None:
        self.array = np.zeros((nbytes + 7) // 8, np.uint64)
        self.address = self.array.ctypes.data

    def close(self) -> None:
        """Drop it."""
        del self.array


class Event:
    """A place in the order of launches, which return when they are done: always over."""

    def record(self, stream: object) -> None:
        """Do nothing."""

    def is_over(self) -> bool:
        """Return True."""
        return True

    def order(self, then: object) -> None:
        """Do nothing."""

    def synchronize(self) -> None:
        """Do nothing."""


class Repeated:
    """A launch to be made again and again."""

    def __init__(self, launch: Callable[[object], None]) -> None:
        self.launch = launch
