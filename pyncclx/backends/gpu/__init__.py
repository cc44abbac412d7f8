"""The GPU as a device: CuPy for modules, streams and pinned memory, the CUDA driver for shared memory and launches."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import cupy

from .exports import GpuExports
from .kernels import GpuKernels

if TYPE_CHECKING:
    from .. import device


class Device(GpuExports, GpuKernels):
    """The GPU that was current when this process first needed one; has the methods of `pyncclx.backends.Device`."""

    dealt = 1


if TYPE_CHECKING:
    _has_all_methods: type[device.Device] = Device


def make_current(local_rank: int, local_size: int) -> int:
    """Make the GPU of a local rank, one of so many, current for CuPy, and PyTorch if loaded; return its number."""
    count: int = cupy.cuda.runtime.getDeviceCount()
    ordinal = local_rank % count
    Device.dealt = max(Device.dealt, -(-local_size // count))
    cupy.cuda.Device(ordinal).use()
    if "torch" in sys.modules:
        sys.modules["torch"].cuda.set_device(ordinal)
    return ordinal
