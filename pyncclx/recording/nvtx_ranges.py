"""Ranges for NVIDIA's profilers: while one listens, each operation is a range of NVTX, as long as its call."""

from __future__ import annotations

import importlib
import threading
from contextlib import suppress
from typing import Any

from ..events import END, START, Event
from ..events.subscription import on_event
from ..system import settings
from . import ring

_LISTENER = "NVTX_INJECTION64_PATH"  # a profiler sets it for the programs that it starts
DOMAIN = "pyncclx"


class Ranges:
    """Begins a range at each start of an operation, and ends it at its end.

    Parameters
    ----------
    nvtx : module
    """

    def __init__(self, nvtx: Any) -> None:
        self._nvtx, self._local = nvtx, threading.local()

    def take(self, event: Event) -> None:
        """Take an event; of a call that has raised there is no end, and its range ends with the one around it."""
        ranges = self._local.__dict__.setdefault("open", [])
        if event.kind == START:
            ranges.append((event.operation, self._nvtx.start_range(message=event.operation, domain=DOMAIN)))
        elif event.kind == END and any(operation == event.operation for operation, _ in ranges):
            while True:
                operation, number = ranges.pop()
                self._nvtx.end_range(number)
                if operation == event.operation:
                    return


def listen(_: ring.Ring) -> None:
    """Begin, if a profiler listens and the package nvtx is there."""
    if settings.foreign(_LISTENER):
        with suppress(ImportError):
            on_event(Ranges(importlib.import_module("nvtx")).take)


ring.when_made.append(listen)
