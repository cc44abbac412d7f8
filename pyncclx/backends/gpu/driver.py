"""CUDA driver calls: errors, handles and captures of streams, a GPU's properties."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import cupy
from cuda.bindings import driver

from ...system.driver import choose_gpu, chosen_gpu
from ...system.driver import name as name_of_gpu

LIBRARY = ctypes.CDLL("libcuda.so.1")
# Two handles of one stream, which can neither be captured, nor queried while other streams are captured.
LEGACY_DEFAULT = (0, 1)
# Handles of streams that cannot be in a capture: the default stream, and streams whose handles the program does not
# have.
NEVER_CAPTURED = set(LEGACY_DEFAULT)
# This handle names a different stream in each thread.
PER_THREAD_DEFAULT = 2
_RELAXED = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
#: Default limit on blocks of an operation. 128 blocks moved long messages 1 to 12 % faster, but operations of two
#: communicators could not be on the GPU together (4 H200, 2026-11-21; docs/design_notes.md, "64 blocks").
MAX_CHANNELS = 64
# Threads of a block; other numbers were not measured.
THREADS = 512
_handles: dict[int, Any] = {}


class _Pointers(dict[int, ctypes.c_void_p]):
    """Cached pointers of stream handles, which ctypes passes without conversion."""

    def __missing__(self, handle: int) -> ctypes.c_void_p:
        return self.setdefault(handle, ctypes.c_void_p(handle))


POINTERS = _Pointers()
# These are called through ctypes because a nonblocking call makes both, and cuda.bindings takes about a microsecond
# longer for each.
RECORD, WAIT = LIBRARY.cuEventRecord, LIBRARY.cuStreamWaitEvent


def checked(result: tuple[Any, ...]) -> Any:
    """Return the value of a driver call; raise RuntimeError for its error."""
    status, *values = result
    if status != driver.CUresult.CUDA_SUCCESS:
        _, text = driver.cuGetErrorString(status)
        raise RuntimeError(f"CUDA driver: {status.name}: {text.decode() if text else 'unknown error'}")
    return values[0] if len(values) == 1 else values


def fail(status: int) -> None:
    """Raise the error for the status of a driver call made through ctypes."""
    checked((driver.CUresult(status),))


def record_event(event: ctypes.c_void_p, stream: Any) -> None:
    """Record an event on a CuPy stream."""
    if status := RECORD(event, POINTERS[stream.ptr]):
        fail(status)


def handle_of(stream: Any) -> Any:
    """Return the driver's handle of a CuPy stream."""
    try:
        return _handles[stream.ptr]
    except KeyError:
        return _handles.setdefault(stream.ptr, driver.CUstream(stream.ptr))


def is_capturing(stream: Any) -> bool:
    """Return whether a stream is being captured; cheaper than `capture_of`."""
    return stream.ptr not in NEVER_CAPTURED and bool(stream.is_capturing())


def capture_of(stream: Any) -> int:
    """Return the id of the capture that a stream is in; 0 if it is in none."""
    if stream.ptr in NEVER_CAPTURED or not stream.is_capturing():
        return 0
    return int(checked(driver.cuStreamGetCaptureInfo(handle_of(stream)))[1])


def query(stream: Any) -> int:
    """Return the driver's status of a CuPy stream that is not being captured.

    It is 0 if the stream is idle, 600 if it has work, otherwise an error.
    """
    return int(driver.cuStreamQuery(handle_of(stream))[0])


@contextmanager
def beside_captures() -> Iterator[None]:
    """Allow calls that the driver forbids during a capture; they are not captured."""
    before = checked(driver.cuThreadExchangeStreamCaptureMode(_RELAXED))
    try:
        yield
    finally:
        checked(driver.cuThreadExchangeStreamCaptureMode(before))


class GpuProperties:
    """The process's GPU; the constructor makes it current, so that it has a context."""

    name = "gpu"
    threads = THREADS

    def __init__(self) -> None:
        self._gpu = cupy.cuda.Device(chosen_gpu())  # None: the current GPU
        self._gpu.use()
        self.ordinal: int = self._gpu.id
        choose_gpu(self.ordinal)
        properties = cupy.cuda.runtime.getDeviceProperties(self.ordinal)
        self.kind: str = properties["name"].decode()
        self.identity = _identity(self.ordinal)
        self.runs_concurrently = self._has_service()
        self.architecture = f"sm_{properties['major']}{properties['minor']}"
        self.multiprocessors: int = properties["multiProcessorCount"]
        self.max_channels = min(MAX_CHANNELS, self.multiprocessors)
        nvlinked = filter(self._is_nvlinked, range(cupy.cuda.runtime.getDeviceCount()))
        self.nvlinked: frozenset[str] | None = frozenset(map(_identity, nvlinked))
        # This call creates the context.
        cupy.cuda.runtime.free(0)
        # Graphs can hold early launches since CUDA 12.3.
        self._launches_early: bool = properties["major"] >= 9 and checked(driver.cuDriverGetVersion()) >= 12030

    def _is_nvlinked(self, ordinal: int) -> bool:
        """Return whether NVLink connects to a GPU; over PCIe there are no peer atomics."""
        if ordinal == self.ordinal:
            return True
        attribute = driver.CUdevice_P2PAttribute.CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED
        return bool(checked(driver.cuDeviceGetP2PAttribute(attribute, self.ordinal, ordinal)))

    def _has_service(self) -> bool:
        """Return whether this process uses the GPU through the Multi-Process Service."""
        attribute = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MPS_ENABLED
        error, enabled = driver.cuDeviceGetAttribute(attribute, self.ordinal)
        # Older drivers do not have the attribute.
        return error == driver.CUresult.CUDA_SUCCESS and bool(enabled)


def _identity(ordinal: int) -> str:
    """Return an identity of a GPU that is the same in all processes."""
    return f"{name_of_gpu(ordinal)} {cupy.cuda.Device(ordinal).pci_bus_id}"
