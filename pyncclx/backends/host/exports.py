"""Messages between two processes of the host device: copies of memory, which a path in /proc opens."""

from __future__ import annotations

import ctypes
import os

import numpy as np

from ..handles import Exported
from .memory import HostMemory, SharedMemory, Upload


class HostExports(HostMemory):
    """`backends.device.Exports` by paths in /proc, which any process of this user can open."""

    exports_are_copies = True

    def __init__(self) -> None:
        self._exported: list[SharedMemory] = []

    def allocate_exported(self, nbytes: int) -> Exported:
        memory = self.allocate_shared(max(nbytes, 1))
        self._exported.append(memory)
        return _exported(memory, nbytes)

    def allocation(self, address: int) -> Exported | None:
        """Return what `allocate_exported` gave, if an address is in it: other arrays are this process' alone."""
        inside = (memory for memory in self._exported if 0 <= address - memory.address < memory.nbytes)
        return next((_exported(memory, memory.nbytes, address - memory.address) for memory in inside), None)

    def export(self, address: int, nbytes: int) -> Exported:
        exported = _exported(self.allocate_shared(max(nbytes, 1)), nbytes)
        ctypes.memmove(exported.address, address, nbytes)
        return exported

    def open_exported(self, handle: bytes, nbytes: int) -> SharedMemory:
        return SharedMemory(os.open(handle, os.O_RDWR), nbytes, owns_fd=True)

    def allocate_temporary(self, nbytes: int, stream: object) -> Upload:
        return Upload(np.empty(nbytes, np.uint8))

    def copy(self, to: int, source: int, nbytes: int, stream: object) -> None:
        ctypes.memmove(to, source, nbytes)

    def peek(self, address: int, nbytes: int) -> bytes:
        return ctypes.string_at(address, nbytes)


def _exported(memory: SharedMemory, nbytes: int, offset: int = 0) -> Exported:
    path = f"/proc/{os.getpid()}/fd/{memory.fd}".encode()
    return Exported(memory.address, nbytes, path, memory.fd, offset, memory)
