"""GPU memory that several processes map: by file descriptor, or by CUDA IPC handle where there are none."""

from __future__ import annotations

import os
from typing import Any, ClassVar

import cupy
from cuda.bindings import driver

from .driver import checked

POSIX_FD = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR


class MappedMemory:
    """Physical memory of some GPU, mapped into this process so that this process's GPU may use it."""

    def __init__(self, handle: Any, nbytes: int, ordinal: int) -> None:
        self._handle, self.nbytes = handle, nbytes
        access = driver.CUmemAccessDesc()
        access.location = _location(ordinal)
        access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        self.address = int(checked(driver.cuMemAddressReserve(nbytes, 0, 0, 0)))
        checked(driver.cuMemMap(self.address, nbytes, 0, handle, 0))
        checked(driver.cuMemSetAccess(self.address, nbytes, [access], 1))

    def close(self) -> None:
        """Unmap; the memory itself lives on while another process maps it."""
        checked(driver.cuMemUnmap(self.address, self.nbytes))
        checked(driver.cuMemAddressFree(self.address, self.nbytes))
        checked(driver.cuMemRelease(self._handle))


class SharedMemory(MappedMemory):
    """Memory of this GPU that peers can map; it travels as a POSIX file descriptor."""

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
        self.fd = int(checked(driver.cuMemExportToShareableHandle(handle, POSIX_FD, 0)))

    def close_fd(self) -> None:
        """Close the descriptor: all who want the memory have mapped it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def close(self) -> None:
        self.close_fd()
        super().close()


class LegacySharedMemory:
    """The same through CUDA IPC, for drivers and containers without virtual memory by file descriptor."""

    fd = -1

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.address = cupy.cuda.runtime.malloc(nbytes)
        self.ipc_handle: bytes = cupy.cuda.runtime.ipcGetMemHandle(self.address)

    def close_fd(self) -> None:
        """There is none."""

    def close(self) -> None:
        cupy.cuda.runtime.free(self.address)


class LegacyPeerMemory:
    """A peer's memory, opened from its CUDA IPC handle."""

    def __init__(self, handle: bytes, nbytes: int) -> None:
        self.nbytes = nbytes
        self.address: int = cupy.cuda.runtime.ipcOpenMemHandle(handle)

    def close(self) -> None:
        cupy.cuda.runtime.ipcCloseMemHandle(self.address)


class Owner:
    """Held by all who need shared memory: when the last has let go, it is left to be unmapped."""

    idle: ClassVar[list[Any]] = []

    def __init__(self, memory: Any) -> None:
        self.memory = memory

    def __del__(self) -> None:
        self.idle.append(self.memory)  # not unmapped here: kernels may still use it, a stream may be capturing


def _location(ordinal: int) -> Any:
    location = driver.CUmemLocation()
    location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    location.id = ordinal
    return location
