"""The emulator as a device: g++ compiles the kernels, CPU threads run them (``cuda/host/emulator.h``)."""

from __future__ import annotations

import os
import socket

from ...system import settings
from .exports import HostExports
from .freed import overwrite_freed
from .kernels import HostKernels
from .streams import HostStreams


class Device(HostExports, HostKernels, HostStreams):
    """The CPU as a device with two channels; has the methods of `pyncclx.backends.Device`, which documents them.

    Parameters
    ----------
    seed, hostile, watchdog_s
        As for `HostKernels`.
    """

    name = "host"
    kind = "host device"
    ordinal = 0
    runs_concurrently = True
    assigned_processes = 1
    max_channels = 2  # the emulator is slow: few blocks of few threads
    multiprocessors = 64  # so many channels can be set; all blocks of a launch are alive at once
    threads = 64
    nvlinked: frozenset[str] | None = None

    def __init__(self, *, seed: int | None = None, hostile: bool | None = None, watchdog_s: float = 3600.0) -> None:
        HostExports.__init__(self)
        HostStreams.__init__(self)
        HostKernels.__init__(self, seed, hostile, watchdog_s)
        if settings.SANITIZE.get():
            overwrite_freed()
        self.identity = f"host-{socket.gethostname()}-{os.getpid()}"
