"""NVTX ranges for NVIDIA's profilers, one for the duration of each call.

They are recorded only if a profiler listens.
"""

from __future__ import annotations

import importlib
import threading
from contextlib import suppress
from typing import Any

from ..events import END, START, Event, on_event
from ..system import settings

# A profiler sets this variable for the programs that it starts.
_LISTENER = "NVTX_INJECTION64_PATH"
DOMAIN = "pyncclx"


class Ranges:
    """Listener that marks each operation, from start to end, as a range.

    Parameters
    ----------
    nvtx : module
    """

    def __init__(self, nvtx: Any) -> None:
        self._nvtx, self._local = nvtx, threading.local()

    def take(self, event: Event) -> None:
        """Handle an event.

        A call that has raised has no end; its range ends with the surrounding one.
        """
        ranges = self._local.__dict__.setdefault("open", [])
        if event.kind == START:
            ranges.append((event.operation, self._nvtx.start_range(message=event.operation, domain=DOMAIN)))
        elif event.kind == END and any(operation == event.operation for operation, _ in ranges):
            while True:
                operation, number = ranges.pop()
                self._nvtx.end_range(number)
                if operation == event.operation:
                    return


def listen() -> None:
    """Start recording ranges if a profiler listens and the package nvtx is installed."""
    if settings.foreign(_LISTENER):
        with suppress(ImportError):
            on_event(Ranges(importlib.import_module("nvtx")).take)
