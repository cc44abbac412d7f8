"""Choose this process's device: a GPU or the emulator."""

from __future__ import annotations

import importlib
from typing import Any

from ..system import settings
from ..system.process import cached
from . import host
from .device import Device
from .handles import Event, Exported, Function, Peer, Repeated, Shared, Upload, Watch

__all__ = [
    "Device",
    "Event",
    "Exported",
    "Function",
    "Peer",
    "Repeated",
    "Shared",
    "Upload",
    "Watch",
    "make_current",
    "select",
]


@cached
def select() -> Device:
    """Return this process's device; the first call creates it.

    Returns
    -------
    Device
        The emulator if ``PYNCCLX_DEVICE`` is ``host``, otherwise the GPU.

    Raises
    ------
    ValueError
        If ``PYNCCLX_DEVICE`` is neither ``host``, ``gpu`` nor empty.
    ImportError
        If a package or library that GPUs need is missing.
    """
    if settings.DEVICE.get() == "host":
        return host.Device()
    device: Device = _gpu().Device()
    return device


def make_current(local_rank: int, local_size: int) -> int:
    """Select one GPU of the node for this process, and return its ordinal.

    Call it before the process uses any GPU.

    Parameters
    ----------
    local_rank, local_size : int
        This process's rank among those of its node, and their number.

    Raises
    ------
    RuntimeError
        If communicators of this process already use another GPU.
    """
    if settings.DEVICE.get() == "host":
        return 0
    ordinal: int = _gpu().make_current(local_rank, local_size)
    if select.cache_info().currsize and select().ordinal != ordinal:
        raise RuntimeError(
            f"communicators of this process already use GPU {select().ordinal}, not {ordinal}: "
            "call select_device() before the first operation on device arrays"
        )
    return ordinal


def _gpu() -> Any:
    try:
        return importlib.import_module("pyncclx.backends.gpu")
    except (ImportError, OSError) as error:
        # A missing package raises ImportError, a missing driver library OSError.
        raise ImportError(
            f"GPUs need a driver, CuPy and CUDA's packages ({error}): pip install 'pyncclx[cuda13]', or cuda12 with "
            "a driver older than 580; without a GPU, PYNCCLX_DEVICE=host emulates the kernels on the CPU"
        ) from error
