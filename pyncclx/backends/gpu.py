"""The GPU: CuPy for modules, streams and pinned memory, the CUDA driver for shared memory and launches."""

from __future__ import annotations

import ctypes
import os
import pickle
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import cupy
import numpy as np
from cuda.bindings import driver

from ..errors import NotSupported
from ..system import settings
from ..system.driver import name as name_of_gpu
from ..system.pointers import is_device_pointer
from . import numba_code, nvrtc
from .exported import Exported
from .gpu_launch import Launcher, Step, beside_captures, checked
from .gpu_memory import (
    POSIX_FD,
    Allocations,
    LegacyPeerMemory,
    LegacySharedMemory,
    MappedMemory,
    Owner,
    PinnedWords,
    SharedMemory,
    Temporary,
    Upload,
    ipc_handle,
)
from .gpu_streams import Event, Foreign, Repeated, can_be_left, capture_of, handle_of, is_capturing

MAX_CHANNELS = 64
THREADS = 512
MOST_PARAMETERS = 4096  # bytes of a kernel's


def _identity(ordinal: int) -> str:
    """What a GPU is called by all processes."""
    return f"{name_of_gpu(ordinal)} {cupy.cuda.Device(ordinal).pci_bus_id}"


def make_current(local_rank: int, local_size: int) -> int:
    """Make the GPU of a local rank, one of so many, current for CuPy, and PyTorch if loaded; return its number."""
    count: int = cupy.cuda.runtime.getDeviceCount()
    ordinal = local_rank % count
    Device.dealt = max(Device.dealt, -(-local_size // count))
    cupy.cuda.Device(ordinal).use()
    if "torch" in sys.modules:
        sys.modules["torch"].cuda.set_device(ordinal)
    return ordinal


class Device:
    """The GPU that was current when this process first needed one."""

    name = "gpu"
    compiles_whole_files = False
    dealt = 1
    threads = THREADS

    def __init__(self) -> None:
        self._gpu = cupy.cuda.Device()
        self.ordinal: int = self._gpu.id
        properties = cupy.cuda.runtime.getDeviceProperties(self.ordinal)
        self.kind: str = properties["name"].decode()
        self.identity = _identity(self.ordinal)
        self.at_once = self._has_service()
        self.architecture = f"sm_{properties['major']}{properties['minor']}"
        self.most_channels: int = properties["multiProcessorCount"]
        self.max_channels = min(MAX_CHANNELS, self.most_channels)
        nvlinked = filter(self._is_nvlinked, range(cupy.cuda.runtime.getDeviceCount()))
        self.nvlinked: frozenset[str] | None = frozenset(map(_identity, nvlinked))
        cupy.cuda.runtime.free(0)  # makes the context
        self._modules: list[Any] = []  # keep what was loaded alive
        self._allocations = Allocations()
        self._stream: Any = None  # its own: see `_aside`
        self._event = checked(driver.cuEventCreate(driver.CUevent_flags.CU_EVENT_DISABLE_TIMING))
        self._launcher = Launcher(MOST_PARAMETERS)
        # Graphs can hold early launches since CUDA 12.3.
        self._early_launcher = Launcher(
            MOST_PARAMETERS, early=properties["major"] >= 9 and checked(driver.cuDriverGetVersion()) >= 12030
        )
        self._launching, self._ordering = threading.Lock(), threading.Lock()  # of whoever uses these, and the event

    def _is_nvlinked(self, ordinal: int) -> bool:
        """Whether NVLink leads to a GPU: over PCIe peers have no atomic operations."""
        if ordinal == self.ordinal:
            return True
        attribute = driver.CUdevice_P2PAttribute.CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED
        return bool(checked(driver.cuDeviceGetP2PAttribute(attribute, self.ordinal, ordinal)))

    def _has_service(self) -> bool:
        """Whether this process reaches the GPU through the Multi-Process Service."""
        attribute = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MPS_ENABLED
        error, enabled = driver.cuDeviceGetAttribute(attribute, self.ordinal)
        return error == driver.CUresult.CUDA_SUCCESS and bool(enabled)  # older drivers do not know the attribute

    # Memory

    def allocate_shared(self, nbytes: int) -> SharedMemory | LegacySharedMemory:
        """Zeroed memory that peers can map; PYNCCLX_IPC=legacy asks for CUDA IPC."""
        self._unmap_idle()
        attribute = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
        virtual = checked(driver.cuDeviceGetAttribute(attribute, self.ordinal))
        memory: SharedMemory | LegacySharedMemory
        if virtual and settings.IPC.get() != "legacy":
            memory = SharedMemory(nbytes, self.ordinal)
        else:
            memory = LegacySharedMemory(nbytes)
        self.fill_zero(memory.address, memory.nbytes)  # what was freed may come again as it was
        return memory

    def map_peer(self, handle: int | bytes, nbytes: int) -> MappedMemory | LegacyPeerMemory:
        """Map a peer's memory from what it sent: a file descriptor, which is closed, or a CUDA IPC handle."""
        try:
            if isinstance(handle, bytes):
                return LegacyPeerMemory(handle, nbytes)
            imported = checked(driver.cuMemImportFromShareableHandle(handle, POSIX_FD))
            os.close(handle)
            return MappedMemory(imported, nbytes, self.ordinal)
        except (RuntimeError, cupy.cuda.runtime.CUDARuntimeError) as error:
            raise NotSupported(
                f"a peer's memory cannot be mapped ({error}). Every process must see all GPUs of its peers (choose by "
                "comm.select_device(), not by CUDA_VISIBLE_DEVICES or Slurm's --gpus-per-task), and the GPUs must have "
                "peer access; where file descriptors of GPU memory do not work, set PYNCCLX_IPC=legacy"
            ) from error

    def owner(self, memory: Any) -> Owner:
        """What keeps shared memory of this process; it is unmapped some time after its last holder has gone."""
        return Owner(memory)

    def array(self, owner: Owner, shape: tuple[int, ...], dtype: Any) -> cupy.ndarray:
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
        if Owner.idle:
            self.synchronize()
        while Owner.idle:
            Owner.idle.pop().close()

    def allocate_watch(self, nbytes: int) -> PinnedWords:
        """Words that the host reads without asking the GPU."""
        return PinnedWords(nbytes)

    def fill_zero(self, address: int, nbytes: int) -> None:
        """Zero memory of this GPU; done when it returns, and no part of what is being captured."""
        stream = self.current_stream()
        with beside_captures():
            handle = handle_of(self._aside() if is_capturing(stream) else stream)
            checked(driver.cuMemsetD8Async(address, 0, nbytes, handle))
            checked(driver.cuStreamSynchronize(handle))

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
            checked(driver.cuFuncLoad(address))
            functions[name] = ctypes.c_void_p(address)
        return functions

    def launch(self, function: Any, grid: int, block: int, parameters: bytes, stream: Any, early: bool = False) -> None:
        """Enqueue a kernel whose only parameter is a struct of these bytes."""
        with self._launching:
            launcher = self._early_launcher if early else self._launcher
            room = launcher.parameters
            room.view[: len(parameters)] = parameters
            launcher.launch(function, grid, block, room.pointers, stream.ptr)

    def launch_arguments(self, function: Any, grid: int, block: int, arguments: Sequence[bytes], stream: Any) -> None:
        """Enqueue a kernel with any number of parameters."""
        values = [ctypes.create_string_buffer(argument, len(argument)) for argument in arguments]
        pointers = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        with self._launching:
            place = ctypes.c_void_p(ctypes.addressof(pointers))
            self._launcher.launch(function, grid, block, place, stream.ptr)

    def repeated(self, function: Any, grid: int, block: int, parameters: bytes, event: Event | None = None) -> Repeated:
        """A launch to be made again and again."""
        return Repeated(self.launch, [Step(function, grid, block, parameters, event)])

    def together(self, several: Sequence[Repeated]) -> Repeated:
        """What several launch, one after the other, by one launch."""
        return Repeated(self.launch, [step for repeated in several for step in repeated.steps])

    def most_blocks(self, function: Any, block: int) -> int:
        """How many blocks of so many threads this GPU runs at once, if it does nothing else."""
        return self.most_channels * self.blocks_each(function, block)

    def blocks_each(self, function: Any, block: int) -> int:
        """How many of them one multiprocessor runs."""
        return int(checked(driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(function.value, block, 0)))

    # Streams

    def current_stream(self) -> Any:
        """CuPy's current stream on this GPU."""
        return cupy.cuda.get_current_stream(self.ordinal)

    def external_stream(self, pointer: int) -> Any:
        """A stream of another library, by its handle."""
        return cupy.cuda.Stream.from_external(Foreign(pointer))

    def new_stream(self) -> Any:
        """A stream that waits for no other, the default one included."""
        return cupy.cuda.Stream(non_blocking=True)

    def can_leave(self, stream: Any) -> bool:
        """Whether any thread may record an event on a stream."""
        return can_be_left(stream)

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Make this GPU current for the thread; what that does is no part of a graph that another one captures."""
        self._gpu.use()
        with beside_captures():
            yield

    def order(self, first: Any, then: Any) -> None:
        """What is enqueued on `then` from now on waits for what is on `first` by now.

        A stream that is being captured and one that is not cannot wait for each other; when a graph runs is
        its owner's affair.
        """
        if first.ptr == then.ptr:
            return
        if capture_of(first) != capture_of(then):
            return
        with self._ordering:
            checked(driver.cuEventRecord(self._event, handle_of(first)))
            checked(driver.cuStreamWaitEvent(handle_of(then), self._event, 0))

    def event(self) -> Event:
        """An event to record."""
        return Event()

    def synchronize(self, stream: Any = None) -> None:
        """Wait on the host for a stream, or for the whole GPU."""
        if stream is None:
            self._gpu.synchronize()
        else:
            stream.synchronize()

    # Messages between two processes

    exports_are_copies = False

    def allocate_exported(self, nbytes: int) -> Exported:
        """Allocate zeroed memory that other processes can open by its CUDA IPC handle."""
        address = cupy.cuda.runtime.malloc(nbytes)
        self.fill_zero(address, nbytes)
        return Exported(address, nbytes, ipc_handle(address))

    def export(self, address: int, nbytes: int) -> Exported | None:
        """Let other processes open the memory at an address: the whole allocation that it is in."""
        return self.allocation(address)

    def allocation(self, address: int) -> Exported | None:
        """Let other processes open the allocation that an address is in; None unless it came from cudaMalloc."""
        return self._allocations.at(address)

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
            checked(driver.cuMemcpyAsync(to, source, nbytes, handle_of(stream)))

    def peek(self, address: int, nbytes: int) -> bytes:
        """Read memory of this GPU on a stream of its own."""
        words, stream = np.empty(nbytes, np.uint8), self._aside()
        self.copy(words.ctypes.data, address, nbytes, stream)
        stream.synchronize()
        return words.tobytes()

    def _aside(self) -> Any:
        """A stream that follows no other."""
        if self._stream is None:
            self._stream = self.new_stream()
        return self._stream

    def is_capturing(self, stream: Any) -> bool:
        """Whether a stream is being captured in a graph."""
        return is_capturing(stream)
