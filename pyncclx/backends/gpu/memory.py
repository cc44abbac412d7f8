"""Memory of the GPU: shared with peers, constant, or shared with the host."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import cupy
import numpy as np
from cuda.bindings import driver

from ...errors import NotSupported
from ...system import settings
from ...system.driver import is_device_pointer
from .driver import beside_captures, checked, handle_of, is_capturing
from .shared_memory import POSIX_FD, LegacyPeerMemory, LegacySharedMemory, MappedMemory, Owner, SharedMemory
from .streams import GpuStreams


class Upload:
    """Bytes in device memory, freed with this object.

    The constructor copies them, on a stream that must not be in a capture.
    """

    def __init__(self, data: bytes, stream: Any) -> None:
        # The copy runs on CuPy's current stream, so `stream` is made current for it.
        with beside_captures(), stream:
            self._array = cupy.asarray(np.frombuffer(data, np.uint8))
            stream.synchronize()
        self.address = int(self._array.data.ptr)


class PinnedWords:
    """64-bit words of host memory that this GPU reads and writes too."""

    def __init__(self, nbytes: int) -> None:
        self._memory = cupy.cuda.alloc_pinned_memory(nbytes)
        self.array = np.frombuffer(self._memory, np.uint64, nbytes // 8)
        self.array[:] = 0
        self.address = int(self._memory.ptr)

    def close(self) -> None:
        del self.array, self._memory


class GpuMemory(GpuStreams):
    """`backends.device.Memory` on the GPU."""

    def allocate_shared(self, nbytes: int) -> SharedMemory | LegacySharedMemory:
        attribute = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
        virtual = checked(driver.cuDeviceGetAttribute(attribute, self.ordinal))
        memory: SharedMemory | LegacySharedMemory
        if virtual and settings.IPC.get() != "legacy":
            memory = SharedMemory(nbytes, self.ordinal)
        else:
            memory = LegacySharedMemory(nbytes)
        try:
            # New memory may contain data from an earlier allocation.
            self.fill_zero(memory.address, memory.nbytes)
        except BaseException:
            memory.close()
            raise
        return memory

    def map_peer(self, handle: int | bytes, nbytes: int) -> MappedMemory | LegacyPeerMemory:
        try:
            if isinstance(handle, bytes):
                return LegacyPeerMemory(handle, nbytes)
            try:
                imported = checked(driver.cuMemImportFromShareableHandle(handle, POSIX_FD))
            finally:
                os.close(handle)
            return MappedMemory(imported, nbytes, self.ordinal)
        except (RuntimeError, cupy.cuda.runtime.CUDARuntimeError) as error:
            raise NotSupported(
                f"a peer's memory cannot be mapped ({error}). Every process must see all GPUs of its peers (choose by "
                "comm.select_device(), not by CUDA_VISIBLE_DEVICES or Slurm's --gpus-per-task), and the GPUs must have "
                "peer access; where file descriptors of GPU memory do not work, set PYNCCLX_IPC=legacy"
            ) from error

    def allocate_watch(self, nbytes: int) -> PinnedWords:
        return PinnedWords(nbytes)

    def owner(self, memory: Any, retire: Callable[[Callable[[], object]], object]) -> Owner:
        return Owner(memory, retire)

    def array(self, owner: Any, shape: tuple[int, ...], dtype: Any) -> cupy.ndarray:
        memory = cupy.cuda.UnownedMemory(owner.address, owner.nbytes, owner, self.ordinal)
        return cupy.ndarray(shape, dtype, cupy.cuda.MemoryPointer(memory, 0))

    def upload(self, data: bytes) -> Upload:
        return Upload(data, self._not_captured())

    def fill_zero(self, address: int, nbytes: int) -> None:
        """Set memory of this GPU to zero before returning, outside any capture."""
        handle = handle_of(self._not_captured())
        with beside_captures():
            checked(driver.cuMemsetD8Async(address, 0, nbytes, handle))
            checked(driver.cuStreamSynchronize(handle))

    def is_device_pointer(self, address: int) -> bool:
        return is_device_pointer(address)

    def room(self, address: int, nbytes: int) -> int:
        return sum(self.pieces(address, nbytes))

    def pieces(self, address: int, nbytes: int) -> list[int]:
        lengths, at, end = [], address, address + nbytes
        # Allocations may be adjacent.
        while at < end and is_device_pointer(at):
            begin, length = checked(driver.cuMemGetAddressRange(at))
            lengths.append(min(int(begin) + int(length), end) - at)
            at += lengths[-1]
        return lengths

    def _not_captured(self) -> Any:
        """Return the current stream, or the device's own if the current one is captured."""
        stream = self.current_stream()
        return self._stream if is_capturing(stream) else stream
