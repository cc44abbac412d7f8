"""The emulator as a device: g++ compiles kernels, and CPU threads run them.

The emulator is ``cuda/host/emulator.h``.
"""

from __future__ import annotations

import os
import socket

from ...system import settings
from .exports import HostExports
from .kernels import HostKernels
from .memory import overwrite_freed
from .streams import HostStreams


class Device(HostExports, HostKernels, HostStreams):
    """The CPU as a device with two channels.

    `pyncclx.backends.Device` documents the methods.

    Parameters
    ----------
    seed, hostile, watchdog_s
        Parameters of `HostKernels`.
    """

    name = "host"
    kind = "host device"
    ordinal = 0
    runs_concurrently = True
    assigned_processes = 1
    # The emulator is slow, so there are few blocks of few threads by default.
    max_channels = 2
    # Limit on channels that can be set; all blocks of a launch run at once.
    multiprocessors = 64
    threads = 64
    nvlinked: frozenset[str] | None = None

    def __init__(self, *, seed: int | None = None, hostile: bool | None = None, watchdog_s: float = 3600.0) -> None:
        HostExports.__init__(self)
        HostStreams.__init__(self)
        HostKernels.__init__(self, seed, hostile, watchdog_s)
        if settings.SANITIZE.get():
            overwrite_freed()
        self.identity = f"host-{socket.gethostname()}-{os.getpid()}"
