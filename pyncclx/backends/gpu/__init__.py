"""The GPU as a device, by CuPy and the CUDA driver.

CuPy provides modules, streams and pinned memory; the driver shares memory and launches kernels. Each group of methods
in `backends.device` has a file here.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import cupy

from ...system import driver
from .exports import GpuExports
from .kernels import GpuKernels

if TYPE_CHECKING:
    from .. import device as protocols


class Device(GpuExports, GpuKernels):
    """The process's GPU (`system.driver.chosen_gpu`).

    `pyncclx.backends.Device` documents the methods.
    """

    assigned_processes = 1


if TYPE_CHECKING:
    _fulfilled: type[protocols.Device] = Device


def make_current(local_rank: int, local_size: int) -> int:
    """Select a local rank's GPU for CuPy, and PyTorch if loaded; return its ordinal."""
    count: int = cupy.cuda.runtime.getDeviceCount()
    ordinal = local_rank % count
    Device.assigned_processes = max(Device.assigned_processes, -(-local_size // count))
    driver.choose_gpu(ordinal)
    cupy.cuda.Device(ordinal).use()
    if "torch" in sys.modules:
        sys.modules["torch"].cuda.set_device(ordinal)
    return ordinal
