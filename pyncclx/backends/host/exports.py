"""Memory for messages between processes of the host device, opened by /proc paths.

In another PID namespace, the path may belong to another process. So each allocation has a random name, which its handle
contains. Readers compare the names before they use the memory.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import secrets

import numpy as np

from ..handles import Exported
from .memory import HostMemory, SharedMemory, Upload, allocate
from .streams import Event, Stream

# Separates path and name in a handle.
_SEPARATOR = " "
# Random bytes, written as 32 characters; a handle has 64 bytes at most.
_NAME_NBYTES = 16


class HostExports(HostMemory):
    """`backends.device.Exports` by paths in /proc, for processes of the same user."""

    exports_are_copies = True

    def __init__(self) -> None:
        self._exported: list[SharedMemory] = []

    def allocate_exported(self, nbytes: int) -> Exported:
        memory = _allocate(nbytes)
        self._exported.append(memory)
        return _exported(memory, nbytes)

    def allocation(self, address: int) -> Exported | None:
        """Return the memory of `allocate_exported` at an address; None for other arrays.

        Other arrays are private to this process.
        """
        inside = (memory for memory in self._exported if 0 <= address - memory.address < memory.nbytes)
        return next((_exported(memory, memory.nbytes, address - memory.address) for memory in inside), None)

    def export(self, address: int, nbytes: int) -> Exported:
        exported = _exported(_allocate(nbytes), nbytes)
        ctypes.memmove(exported.address, address, nbytes)
        return exported

    def open_exported(self, handle: bytes, nbytes: int) -> SharedMemory:
        path, name = handle.decode().split(_SEPARATOR)
        # Check before opening, because opening anything other than memory may have side effects.
        _check(path, name)
        fd = os.open(path, os.O_RDWR)
        try:
            _check(f"/proc/self/fd/{fd}", name)
            return SharedMemory(fd, nbytes, owns_fd=True)
        except BaseException:
            os.close(fd)
            raise

    def allocate_temporary(self, nbytes: int, stream: object) -> Upload:
        return Upload(np.empty(nbytes, np.uint8))

    def copy(self, to: int, source: int, nbytes: int, stream: Stream | None) -> None:
        if stream is None:
            ctypes.memmove(to, source, nbytes)
        else:
            stream.enqueue(functools.partial(ctypes.memmove, to, source, nbytes))

    def copy_pageable(self, to: int, source: int, nbytes: int, stream: Stream | None) -> None:
        end = Event()
        end.record(stream)
        end.synchronize()
        self.copy(to, source, nbytes, None)

    def peek(self, address: int, nbytes: int) -> bytes:
        return ctypes.string_at(address, nbytes)

    def poke(self, address: int, data: bytes) -> None:
        ctypes.memmove(address, data, len(data))


def _allocate(nbytes: int) -> SharedMemory:
    return allocate(max(nbytes, 1), secrets.token_hex(_NAME_NBYTES))


def _exported(memory: SharedMemory, nbytes: int, offset: int = 0) -> Exported:
    handle = f"/proc/{os.getpid()}/fd/{memory.fd}{_SEPARATOR}{memory.name}".encode()
    return Exported(memory.address, nbytes, handle, memory.fd, offset, memory)


def _check(path: str, name: str) -> None:
    """Raise OSError unless a path in /proc is that of memory with this name."""
    if os.readlink(path) != f"/memfd:{name} (deleted)":
        text = "not the memory that was exported: it has been closed, or its process is in another PID namespace"
        raise OSError(errno.ESTALE, text, path)
