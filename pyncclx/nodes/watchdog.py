"""The end of waits on the GPU for other nodes: NCCL's kernels have no deadline of their own.

A thread looks whether programs that were enqueued have ended. If one has not within PYNCCLX_TIMEOUT, or NCCL has found
an error, the thread aborts the engine, whose kernels then leave. What a captured graph replays it cannot see.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from ..backends import Device, Event
from ..errors import StepTimeout
from ..system.process import PerProcess
from .engine import Engine

PAUSE_S = 0.02  # between two looks


@dataclass(frozen=True, slots=True)
class Awaited:
    """A program that has been enqueued."""

    steps: str  # that may not have ended, for messages
    end: Event
    deadline: float
    engines: Sequence[Engine]
    rank: int
    peers: tuple[int, ...]

    def is_over(self) -> bool:
        """Return whether it has ended; abort its engines if it should have."""
        if self.end.is_over():
            return True
        late = time.monotonic() > self.deadline
        reason = StepTimeout(self.steps, self.rank, self.peers) if late else None
        for engine in self.engines:
            try:
                engine.check()
                if reason is not None:
                    engine.abort(self.steps, reason)
            except Exception:  # its own, which calls raise from now on
                late = True
        return late


class Watchdog:
    """Looks at programs in a thread of its own, as long as there are some."""

    def __init__(self) -> None:
        self._awaited: deque[tuple[Device, Awaited]] = deque()
        self._there = threading.Event()
        threading.Thread(target=self._run, name="pyncclx watchdog", daemon=True).start()

    def add(self, device: Device, awaited: Awaited) -> None:
        """Look at a program from now on; those of one stream end in the order in which they are given."""
        self._awaited.append((device, awaited))
        self._there.set()

    def _run(self) -> None:
        while True:
            self._there.wait()
            while self._awaited:
                self.look()
                time.sleep(PAUSE_S)
            self._there.clear()
            if self._awaited:  # it came between the last two lines
                self._there.set()

    def look(self) -> None:
        """Look once at each."""
        for _ in range(len(self._awaited)):
            device, awaited = self._awaited.popleft()
            with device.attached():
                if not awaited.is_over():
                    self._awaited.append((device, awaited))


WATCHDOG = PerProcess(Watchdog)
