"""Memory for messages between two processes: CUDA IPC, temporary memory, copies."""

from __future__ import annotations

import ctypes
from typing import Any

import cupy
from cuda.bindings import driver

from ...system.process import BoundedCache
from ..handles import Exported
from .driver import LIBRARY, beside_captures, checked, fail, handle_of
from .memory import GpuMemory
from .shared_memory import LegacyPeerMemory

_HAS_IPC_HANDLE = int(driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE)
_NUMBER = int(driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_BUFFER_ID)


class GpuExports(GpuMemory):
    """`backends.device.Exports` by CUDA IPC: other processes open whole allocations."""

    exports_are_copies = False

    def __init__(self) -> None:
        super().__init__()
        self._allocations = Allocations()

    def allocate_exported(self, nbytes: int) -> Exported:
        with beside_captures():
            address = cupy.cuda.runtime.malloc(nbytes)
        self.fill_zero(address, nbytes)
        return Exported(address, nbytes, ipc_handle(address))

    def allocation(self, address: int) -> Exported | None:
        return self._allocations.at(address)

    def export(self, address: int, nbytes: int) -> Exported | None:
        return self.allocation(address)

    def open_exported(self, handle: bytes, nbytes: int) -> LegacyPeerMemory:
        return LegacyPeerMemory(handle.ljust(64, b"\0"), nbytes)

    def allocate_temporary(self, nbytes: int, stream: Any) -> Temporary:
        with stream:
            return Temporary(cupy.cuda.alloc(nbytes))

    def copy(self, to: int, source: int, nbytes: int, stream: Any) -> None:
        """Copy between GPU or host addresses; unpinned host memory is free on return."""
        if nbytes:
            checked(driver.cuMemcpyAsync(to, source, nbytes, handle_of(stream)))

    def copy_pageable(self, to: int, source: int, nbytes: int, stream: Any) -> None:
        # While CUDA's copy waits for its stream, other threads cannot load kernels or create events. The stream may in
        # turn wait for work of those threads.
        self.synchronize(stream)
        self.copy(to, source, nbytes, stream)

    def peek(self, address: int, nbytes: int) -> bytes:
        copy = ctypes.create_string_buffer(nbytes)
        self._copy_now(ctypes.addressof(copy), address, nbytes)
        return copy.raw

    def poke(self, address: int, data: bytes) -> None:
        copy = ctypes.create_string_buffer(data, len(data))
        self._copy_now(address, ctypes.addressof(copy), len(data))

    def _copy_now(self, to: int, source: int, nbytes: int) -> None:
        stream = self._stream
        with beside_captures():
            self.copy(to, source, nbytes, stream)
            stream.synchronize()


class Allocations:
    """Allocations of this process that others can open, by the driver's allocation id.

    The driver never reuses an id.
    """

    def __init__(self) -> None:
        # Base address, nbytes and CUDA IPC handle, by the number of the allocation.
        self._known: BoundedCache[int, tuple[int, int, bytes]] = BoundedCache()

    def at(self, address: int) -> Exported | None:
        """Return the allocation at an address; None unless cudaMalloc allocated it."""
        if not _attribute(_HAS_IPC_HANDLE, address):
            return None
        number = _attribute(_NUMBER, address)
        base, nbytes, handle = self._known.get(number) or self._read(number, address)
        return Exported(base, nbytes, handle, number, address - base)

    def _read(self, number: int, address: int) -> tuple[int, int, bytes]:
        base, nbytes = map(int, checked(driver.cuMemGetAddressRange(address)))
        self._known[number] = base, nbytes, ipc_handle(base)
        return self._known[number]


def _attribute(name: int, address: int) -> int:
    # The driver writes shorter attributes to the first bytes only.
    value = ctypes.c_uint64(0)
    if status := LIBRARY.cuPointerGetAttribute(ctypes.byref(value), name, ctypes.c_uint64(address)):
        fail(status)
    return value.value


def ipc_handle(address: int) -> bytes:
    """Return the CUDA IPC handle of an allocation; empty where CUDA IPC does not work."""
    try:
        handle: bytes = cupy.cuda.runtime.ipcGetMemHandle(address)
    except cupy.cuda.runtime.CUDARuntimeError:
        return b""
    return handle


class Temporary:
    """Memory of CuPy's pool, which reuses it for the same stream, in stream order."""

    def __init__(self, memory: Any) -> None:
        self._memory = memory
        self.address = int(memory.ptr)
