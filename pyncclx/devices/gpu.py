"""The GPU: CuPy for modules, streams and pinned memory, the CUDA driver for shared memory and launches."""

from __future__ import annotations

import ctypes
import functools
import os
import pickle
import sys
import threading
from collections.abc import Sequence
from typing import Any, ClassVar

import cupy
import numpy as np
from cuda.bindings import driver

from ..errors import NotSupported
from . import numba_code, nvrtc
from .exported import Exported
from .gpu_launch import Graph, Launcher
from .gpu_launch import checked as _checked
from .pointers import is_device_pointer

MAX_CHANNELS = 64
THREADS = 512
MOST_PARAMETERS = 4096  # bytes of a kernel's

_POSIX_FD = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
_CAPTURING = driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE


class MappedMemory:
    """Physical memory of some GPU, mapped into this process so that this process's GPU may use it."""

    def __init__(self, handle: Any, nbytes: int, ordinal: int) -> None:
        self._handle, self.nbytes = handle, nbytes
        access = driver.CUmemAccessDesc()
        access.location = _location(ordinal)
        access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        self.address = int(_checked(driver.cuMemAddressReserve(nbytes, 0, 0, 0)))
        _checked(driver.cuMemMap(self.address, nbytes, 0, handle, 0))
        _checked(driver.cuMemSetAccess(self.address, nbytes, [access], 1))

    def close(self) -> None:
        """Unmap; the memory itself lives on while another process maps it."""
        _checked(driver.cuMemUnmap(self.address, self.nbytes))
        _checked(driver.cuMemAddressFree(self.address, self.nbytes))
        _checked(driver.cuMemRelease(self._handle))


class SharedMemory(MappedMemory):
    """Memory of this GPU that peers can map; it travels as a POSIX file descriptor."""

    ipc_handle = b""

    def __init__(self, nbytes: int, ordinal: int) -> None:
        properties = driver.CUmemAllocationProp()
        properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.location = _location(ordinal)
        properties.requestedHandleTypes = _POSIX_FD
        flag = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        granularity = _checked(driver.cuMemGetAllocationGranularity(properties, flag))
        nbytes = -(-nbytes // granularity) * granularity
        handle = _checked(driver.cuMemCreate(nbytes, properties, 0))
        super().__init__(handle, nbytes, ordinal)
        self.fd = int(_checked(driver.cuMemExportToShareableHandle(handle, _POSIX_FD, 0)))

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


class Event:
    """A place in the order of a stream."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._owner = cupy.cuda.Event(disable_timing=True)
        self._event = driver.CUevent(self._owner.ptr)
        self._on = self._capture = 0  # the stream and the capture it was recorded in

    def record(self, stream: Any) -> None:
        """Be where the stream's work ends by now."""
        handle = self._device._stream(stream)
        self._on, self._capture = stream.ptr, self._device._capture(handle)
        _checked(driver.cuEventRecord(self._event, handle))

    def recorded(self, pointer: int) -> None:
        """A graph has been launched, on the stream of this handle, that does what `record` does."""
        self._on, self._capture = pointer, 0

    def is_over(self) -> bool:
        """Whether the work before it is over. One in a capture cannot be asked: its work runs when the graph does."""
        if self._capture:
            return True
        result = driver.cuEventQuery(self._event)
        if result[0] == driver.CUresult.CUDA_ERROR_NOT_READY:
            return False
        _checked(result)
        return True

    def order(self, then: Any) -> None:
        """What is enqueued on `then` from now on waits; not across the border of a capture, as `Device.order`."""
        handle = self._device._stream(then)
        if then.ptr != self._on and self._device._capture(handle) == self._capture:
            _checked(driver.cuStreamWaitEvent(handle, self._event, 0))

    def synchronize(self) -> None:
        """Wait on the host; not for one in a capture."""
        if not self._capture:
            self._owner.synchronize()


class Repeated:
    """A kernel to be launched again and again, and the event that says when the last launch has ended, if wanted."""

    def __init__(
        self, device: Device, function: Any, grid: int, block: int, parameters: bytes, event: Event | None
    ) -> None:
        self._event = event
        self._graph = Graph(function, grid, block, parameters, None if event is None else event._event)
        self._launch = functools.partial(device.launch, function, grid, block, parameters)

    def launch(self, stream: Any) -> None:
        """Enqueue it: as a graph of its own, or in the one that is being captured."""
        pointer = stream.ptr
        if pointer and stream.is_capturing():  # 0, the legacy default stream, cannot be
            self._launch(stream)
            if self._event is not None:
                self._event.record(stream)
            return
        self._graph.launch(pointer)
        if self._event is not None:
            self._event.recorded(pointer)


class Upload:
    """Constant bytes in device memory."""

    def __init__(self, data: bytes) -> None:
        self._array = cupy.asarray(np.frombuffer(data, np.uint8))
        cupy.cuda.get_current_stream().synchronize()
        self.address = int(self._array.data.ptr)


class _Owner:
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


def _ipc_handle(address: int) -> bytes:
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


class _Foreign:
    """A stream handle in the form that CuPy takes."""

    def __init__(self, pointer: int) -> None:
        self.pointer = pointer

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.pointer


def make_current(local_rank: int) -> int:
    """Make the GPU of a local rank current for CuPy, and for PyTorch if it is loaded; return its number."""
    ordinal: int = local_rank % cupy.cuda.runtime.getDeviceCount()
    cupy.cuda.Device(ordinal).use()
    if "torch" in sys.modules:
        sys.modules["torch"].cuda.set_device(ordinal)
    return ordinal


class Device:
    """The GPU that was current when this process first needed one."""

    name = "gpu"
    compiles_whole_files = False
    max_channels = MAX_CHANNELS
    threads = THREADS

    def __init__(self) -> None:
        self._gpu = cupy.cuda.Device()
        self.ordinal: int = self._gpu.id
        properties = cupy.cuda.runtime.getDeviceProperties(self.ordinal)
        self.kind: str = properties["name"].decode()
        self.identity = f"{self.kind} {self._gpu.pci_bus_id}"
        self.architecture = f"sm_{properties['major']}{properties['minor']}"
        cupy.cuda.runtime.free(0)  # makes the context
        self._modules: list[Any] = []  # keep what was loaded alive
        self._streams: dict[int, Any] = {}
        self._handles: dict[int, tuple[int, bytes]] = {}  # of allocations: address -> identity, CUDA IPC handle
        self._reader: Any = None  # the stream of `peek`
        self._event = _checked(driver.cuEventCreate(driver.CUevent_flags.CU_EVENT_DISABLE_TIMING))
        self._launcher = Launcher(MOST_PARAMETERS)
        self._launching = threading.Lock()  # of whoever uses it

    # Memory

    def allocate_shared(self, nbytes: int) -> SharedMemory | LegacySharedMemory:
        """Memory that peers can map; PYNCCLX_IPC=legacy asks for CUDA IPC."""
        self._unmap_idle()
        attribute = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
        virtual = _checked(driver.cuDeviceGetAttribute(attribute, self.ordinal))
        if virtual and os.environ.get("PYNCCLX_IPC") != "legacy":
            return SharedMemory(nbytes, self.ordinal)
        return LegacySharedMemory(nbytes)

    def map_peer(self, handle: int | bytes, nbytes: int) -> MappedMemory | LegacyPeerMemory:
        """Map a peer's memory from what it sent: a file descriptor, which is closed, or a CUDA IPC handle."""
        try:
            if isinstance(handle, bytes):
                return LegacyPeerMemory(handle, nbytes)
            imported = _checked(driver.cuMemImportFromShareableHandle(handle, _POSIX_FD))
            os.close(handle)
            return MappedMemory(imported, nbytes, self.ordinal)
        except (RuntimeError, cupy.cuda.runtime.CUDARuntimeError) as error:
            raise NotSupported(
                f"a peer's memory cannot be mapped ({error}). Every process must see all GPUs of its peers (choose by "
                "comm.select_device(), not by CUDA_VISIBLE_DEVICES), and the GPUs must have peer access; where file "
                "descriptors of GPU memory do not work, set PYNCCLX_IPC=legacy"
            ) from error

    def owner(self, memory: Any) -> _Owner:
        """What keeps shared memory of this process; it is unmapped some time after its last holder has gone."""
        return _Owner(memory)

    def array(self, owner: _Owner, shape: tuple[int, ...], dtype: Any) -> cupy.ndarray:
        """The memory of an owner as a CuPy array."""
        memory = owner.memory
        owned = cupy.cuda.UnownedMemory(memory.address, memory.nbytes, owner, self.ordinal)
        return cupy.ndarray(shape, dtype, cupy.cuda.MemoryPointer(owned, 0))

    def peer_array(self, peer: Any, shape: tuple[int, ...], dtype: Any) -> cupy.ndarray:
        """A peer's memory as a CuPy array, for as long as it is mapped."""
        memory = cupy.cuda.UnownedMemory(peer.address, peer.nbytes, peer, self.ordinal)
        return cupy.ndarray(shape, dtype, cupy.cuda.MemoryPointer(memory, 0))

    def upload(self, data: bytes) -> Upload:
        """Copy bytes to the GPU; there when it returns."""
        return Upload(data)

    def _unmap_idle(self) -> None:
        if _Owner.idle:
            self.synchronize()
        while _Owner.idle:
            _Owner.idle.pop().close()

    def allocate_watch(self, nbytes: int) -> PinnedWords:
        """Words that the host reads without asking the GPU."""
        return PinnedWords(nbytes)

    def fill_zero(self, address: int, nbytes: int) -> None:
        """Zero memory of this GPU; done when it returns."""
        stream = self._stream(self.current_stream())
        _checked(driver.cuMemsetD8Async(address, 0, nbytes, stream))
        _checked(driver.cuStreamSynchronize(stream))

    def is_device_pointer(self, address: int) -> bool:
        """Whether the driver knows an address as GPU memory."""
        return is_device_pointer(address)

    # Kernels

    def compile(self, file: str, instantiations: list[str]) -> bytes:
        """Kernels of cuda/`file` as one binary for this GPU."""
        return pickle.dumps(nvrtc.compile_cached(file, instantiations, self.architecture))

    def compile_linked(self, file: str, instantiations: list[str], fn: Any, dtype: Any) -> bytes:
        """The same with a user's operator linked in."""
        code = numba_code.for_gpu(fn, dtype, self.architecture)
        return pickle.dumps(nvrtc.compile_linked(file, instantiations, self.architecture, code))

    def load_linked(self, image: bytes, fn: Any, dtype: Any) -> dict[str, Any]:
        """Load what `compile_linked` gave: the operator is in it."""
        return self.load(image)

    def load(self, image: bytes) -> dict[str, Any]:
        """Load what `compile` gave, down to the last function: nothing is left to do at the first launch."""
        binary: nvrtc.Binary = pickle.loads(image)
        module = cupy.cuda.Module()
        module.load(binary.cubin)
        self._modules.append(module)
        functions = {}
        for name, lowered in binary.lowered_names.items():
            address = module.get_function(lowered).ptr
            _checked(driver.cuFuncLoad(address))
            functions[name] = ctypes.c_void_p(address)
        return functions

    def launch(self, function: Any, grid: int, block: int, parameters: bytes, stream: Any) -> None:
        """Enqueue a kernel whose only parameter is a struct of these bytes."""
        with self._launching:
            self._launcher.launch(function, grid, block, parameters, stream.ptr)

    def launch_arguments(self, function: Any, grid: int, block: int, arguments: Sequence[bytes], stream: Any) -> None:
        """Enqueue a kernel with any number of parameters."""
        values = [ctypes.create_string_buffer(argument, len(argument)) for argument in arguments]
        pointers = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        with self._launching:
            place = ctypes.c_void_p(ctypes.addressof(pointers))
            self._launcher.launch_arguments(function, grid, block, place, stream.ptr)

    def repeated(self, function: Any, grid: int, block: int, parameters: bytes, event: Event | None = None) -> Repeated:
        """A launch to be made again and again."""
        return Repeated(self, function, grid, block, parameters, event)

    def most_blocks(self, function: Any, block: int) -> int:
        """How many blocks of so many threads this GPU runs at once, if it does nothing else."""
        attribute = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
        multiprocessors = _checked(driver.cuDeviceGetAttribute(attribute, self.ordinal))
        each = _checked(driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(function.value, block, 0))
        return int(multiprocessors * each)

    # Streams

    def current_stream(self) -> Any:
        """CuPy's current stream on this GPU."""
        return cupy.cuda.get_current_stream(self.ordinal)

    def external_stream(self, pointer: int) -> Any:
        """A stream of another library, by its handle."""
        return cupy.cuda.Stream.from_external(_Foreign(pointer))

    def order(self, first: Any, then: Any) -> None:
        """What is enqueued on `then` from now on waits for what is on `first` by now.

        A stream that is being captured and one that is not cannot wait for each other; when a graph runs is
        its owner's affair.
        """
        if first.ptr == then.ptr:
            return
        before, after = self._stream(first), self._stream(then)
        if self._capture(before) != self._capture(after):
            return
        _checked(driver.cuEventRecord(self._event, before))
        _checked(driver.cuStreamWaitEvent(after, self._event, 0))

    def event(self) -> Event:
        """An event to record."""
        return Event(self)

    def synchronize(self, stream: Any = None) -> None:
        """Wait on the host for a stream, or for the whole GPU."""
        if stream is None:
            self._gpu.synchronize()
        else:
            stream.synchronize()

    def _stream(self, stream: Any) -> Any:
        try:
            return self._streams[stream.ptr]
        except KeyError:
            return self._streams.setdefault(stream.ptr, driver.CUstream(stream.ptr))

    @staticmethod
    def _capture(stream: Any) -> int:
        """The capture a stream takes part in; 0: none."""
        status, *values = driver.cuStreamGetCaptureInfo(stream)
        if status != driver.CUresult.CUDA_SUCCESS or values[0] != _CAPTURING:
            return 0
        return int(values[1])

    # Messages between two processes

    exports_are_copies = False

    def allocate_exported(self, nbytes: int) -> Exported:
        """Allocate zeroed memory that other processes can open by its CUDA IPC handle."""
        address = cupy.cuda.runtime.malloc(nbytes)
        self.fill_zero(address, nbytes)
        return Exported(address, nbytes, _ipc_handle(address))

    def export(self, address: int, nbytes: int) -> Exported | None:
        """Let other processes open the allocation that an address is in; None unless it came from cudaMalloc."""
        capable = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE
        if not _checked(driver.cuPointerGetAttribute(capable, address)):
            return None
        number = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_BUFFER_ID
        identity = int(_checked(driver.cuPointerGetAttribute(number, address)))
        base, whole = map(int, _checked(driver.cuMemGetAddressRange(address)))
        if self._handles.get(base, (-1, b""))[0] != identity:
            self._handles[base] = identity, _ipc_handle(base)
        return Exported(base, whole, self._handles[base][1], identity, address - base)

    def open_exported(self, handle: bytes, nbytes: int) -> LegacyPeerMemory:
        """Map an allocation of another process."""
        return LegacyPeerMemory(handle.ljust(64, b"\0"), nbytes)

    def allocate_temporary(self, nbytes: int, stream: Any) -> Temporary:
        """Allocate from CuPy's pool for `stream`."""
        with stream:
            return Temporary(cupy.cuda.alloc(nbytes))

    def copy(self, to: int, source: int, nbytes: int, stream: Any) -> None:
        """Copy between addresses of GPUs or the host; memory of the host that is not pinned is free at return."""
        if nbytes:
            _checked(driver.cuMemcpyAsync(to, source, nbytes, self._stream(stream)))

    def peek(self, address: int, nbytes: int) -> bytes:
        """Read memory of this GPU on a stream of its own."""
        if self._reader is None:
            self._reader = cupy.cuda.Stream(non_blocking=True)
        words = np.empty(nbytes, np.uint8)
        self.copy(words.ctypes.data, address, nbytes, self._reader)
        self._reader.synchronize()
        return words.tobytes()

    def is_capturing(self, stream: Any) -> bool:
        """Whether a stream is being captured in a graph."""
        return self._capture(self._stream(stream)) != 0
