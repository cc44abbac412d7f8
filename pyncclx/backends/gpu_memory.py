"""GPU memory of all kinds: what peers can map, what they have mapped, constants, temporaries, pinned words."""

from __future__ import annotations

import ctypes
import os
from typing import Any, ClassVar

import cupy
import numpy as np
from cuda.bindings import driver

from .exported import Exported
from .gpu_launch import LIBRARY, checked, fail

POSIX_FD = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
_HAS_IPC_HANDLE = int(driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE)
_NUMBER = int(driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_BUFFER_ID)
_MOST_ALLOCATIONS = 1024  # that are remembered


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


class Upload:
    """Constant bytes in device memory."""

    def __init__(self, data: bytes) -> None:
        self._array = cupy.asarray(np.frombuffer(data, np.uint8))
        cupy.cuda.get_current_stream().synchronize()
        self.address = int(self._array.data.ptr)


class Owner:
    """Held by all who need shared memory: when the last has let go, it is left to be unmapped."""

    idle: ClassVar[list[Any]] = []

    def __init__(self, memory: Any) -> None:
        self.memory = memory

    def __del__(self) -> None:
        self.idle.append(self.memory)  # not unmapped here: kernels may still use it, a stream may be capturing


class Temporary:
    """Memory of CuPy's pool. The pool gives it to the stream it was allocated for only, so in that stream's order."""

    def __init__(self, memory: Any) -> None:
        self._memory = memory
        self.address = int(memory.ptr)


class PinnedWords:
    """64-bit words of host memory that this GPU reads and writes too."""

    def __init__(self, nbytes: int) -> None:
        self._memory = cupy.cuda.alloc_pinned_memory(nbytes)
        self.array = np.frombuffer(self._memory, np.uint64, nbytes // 8)
        self.array[:] = 0
        self.address = int(self._memory.ptr)

    def close(self) -> None:
        del self.array, self._memory


class Allocations:
    """The allocations of this process that other processes can open, by the numbers that the driver gives them once."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, int, bytes]] = {}  # where it begins, bytes, CUDA IPC handle

    def at(self, address: int) -> Exported | None:
        """The allocation that an address is in; None unless it came from cudaMalloc."""
        if not _attribute(_HAS_IPC_HANDLE, address):
            return None
        number = _attribute(_NUMBER, address)
        base, nbytes, handle = self._known.get(number) or self._read(number, address)
        return Exported(base, nbytes, handle, number, address - base)

    def _read(self, number: int, address: int) -> tuple[int, int, bytes]:
        base, nbytes = map(int, checked(driver.cuMemGetAddressRange(address)))
        if len(self._known) >= _MOST_ALLOCATIONS:
            self._known.clear()
        self._known[number] = base, nbytes, ipc_handle(base)
        return self._known[number]


def _attribute(name: int, address: int) -> int:
    value = ctypes.c_uint64(0)  # shorter ones leave the rest zero
    if status := LIBRARY.cuPointerGetAttribute(ctypes.byref(value), name, ctypes.c_uint64(address)):
        fail(status)
    return value.value


def ipc_handle(address: int) -> bytes:
    """The CUDA IPC handle of an allocation; empty where there is no CUDA IPC."""
    try:
        handle: bytes = cupy.cuda.runtime.ipcGetMemHandle(address)
    except cupy.cuda.runtime.CUDARuntimeError:
        return b""
    return handle


def _location(ordinal: int) -> Any:
    location = driver.CUmemLocation()
    location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    location.id = ordinal
    return location
