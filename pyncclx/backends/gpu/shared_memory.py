"""GPU memory that several processes map, by file descriptor or by CUDA IPC handle.

IPC handles are for systems where descriptors of GPU memory do not work.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import cupy
from cuda.bindings import driver

from .driver import checked

POSIX_FD = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR


class MappedMemory:
    """Physical memory of any GPU, mapped into this process for its GPU.

    The object owns the handle. If the memory cannot be mapped, it releases the handle.
    """

    def __init__(self, handle: Any, nbytes: int, ordinal: int) -> None:
        self._handle, self.nbytes = handle, nbytes
        access = driver.CUmemAccessDesc()
        access.location = _location(ordinal)
        access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        with ExitStack() as undo:
            undo.callback(driver.cuMemRelease, handle)
            self.address = int(checked(driver.cuMemAddressReserve(nbytes, 0, 0, 0)))
            undo.callback(driver.cuMemAddressFree, self.address, nbytes)
            checked(driver.cuMemMap(self.address, nbytes, 0, handle, 0))
            undo.callback(driver.cuMemUnmap, self.address, nbytes)
            checked(driver.cuMemSetAccess(self.address, nbytes, [access], 1))
            undo.pop_all()

    def close(self) -> None:
        """Unmap the memory; it exists until the last process has unmapped it."""
        checked(driver.cuMemUnmap(self.address, self.nbytes))
        checked(driver.cuMemAddressFree(self.address, self.nbytes))
        checked(driver.cuMemRelease(self._handle))


class SharedMemory(MappedMemory):
    """Memory of this GPU that peers can map by POSIX file descriptor."""

    ipc_handle = b""

    def __init__(self, nbytes: int, ordinal: int) -> None:
        properties = driver.CUmemAllocationProp()
        properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.location = _location(ordinal)
        properties.requestedHandleTypes = POSIX_FD
        flag = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        granularity = checked(driver.cuMemGetAllocationGranularity(properties, flag))
        nbytes = -(-nbytes // granularity) * granularity
        handle = checked(driver.cuMemCreate(nbytes, properties, 0))
        super().__init__(handle, nbytes, ordinal)
        self.fd = -1
        try:
            self.fd = int(checked(driver.cuMemExportToShareableHandle(handle, POSIX_FD, 0)))
        except BaseException:
            self.close()
            raise

    def close_fd(self) -> None:
        """Close the descriptor; a second call does nothing."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def close(self) -> None:
        self.close_fd()
        super().close()


class LegacySharedMemory:
    """Memory that peers map by CUDA IPC, where descriptors of GPU memory do not work."""

    fd = -1

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.address = cupy.cuda.runtime.malloc(nbytes)
        try:
            self.ipc_handle: bytes = cupy.cuda.runtime.ipcGetMemHandle(self.address)
        except BaseException:
            self.close()
            raise

    def close_fd(self) -> None:
        """Do nothing, because there is no descriptor."""

    def close(self) -> None:
        cupy.cuda.runtime.free(self.address)


class LegacyPeerMemory:
    """A peer's memory, opened by its CUDA IPC handle."""

    def __init__(self, handle: bytes, nbytes: int) -> None:
        self.nbytes = nbytes
        self.address: int = cupy.cuda.runtime.ipcOpenMemHandle(handle)

    def close(self) -> None:
        cupy.cuda.runtime.ipcCloseMemHandle(self.address)


class Owner:
    """Owner of mapped shared memory; its deletion passes `memory.close` to `retire`."""

    def __init__(self, memory: Any, retire: Callable[[Callable[[], object]], object]) -> None:
        self.memory, self.address, self.nbytes, self._retire = memory, memory.address, memory.nbytes, retire

    def __del__(self) -> None:
        # The memory is not unmapped here, because kernels may still use it, or a stream may be in a capture.
        self._retire(self.memory.close)


def _location(ordinal: int) -> Any:
    location = driver.CUmemLocation()
    location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    location.id = ordinal
    return location
