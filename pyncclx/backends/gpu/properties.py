"""Properties of a GPU: its name, architecture and size, and which peers reach it."""

from __future__ import annotations

import cupy
from cuda.bindings import driver

from ...system import own_gpu
from ...system.driver import name as name_of_gpu
from .driver import checked

#: Blocks of an operation. 128 blocks moved long messages 1 to 12 % faster, but operations of two communicators could
#: not be on the GPU together (4 H200, 2026-11-21; docs/design_notes.md, "64 blocks").
MAX_CHANNELS = 64
# Threads of a block; other numbers were not measured.
THREADS = 512


class GpuProperties:
    """The process's GPU; the constructor makes it current, so that it has a context."""

    name = "gpu"
    threads = THREADS

    def __init__(self) -> None:
        self._gpu = cupy.cuda.Device(own_gpu.chosen())  # None: the current one
        self._gpu.use()
        self.ordinal: int = self._gpu.id
        own_gpu.choose(self.ordinal)
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
    """Return a name of a GPU that is the same in all processes."""
    return f"{name_of_gpu(ordinal)} {cupy.cuda.Device(ordinal).pci_bus_id}"
