"""The end of waits for other nodes in NCCL, whose kernels and calls have no deadline of their own.

A thread looks whether programs that were enqueued have ended. If one has not within PYNCCLX_TIMEOUT, or NCCL has found
an error, the thread aborts the engine, whose kernels then leave. It does so, too, while the host enqueues a program:
NCCL connects ranks at the first step that needs it, and its call returns when the peers have come to that step. What a
captured graph replays it cannot see.

Where MPI moves data, its waits look whether other ranks have made other calls. The thread looks meanwhile for a rank
that waits in a kernel: for one of its node, which may wait for a rank that has made another call.

The same thread sends the texts of calls that wait for others to be sent with (`comparison.py`).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ..backends import Device, Event
from ..errors import StepTimeout
from ..system import settings, threads
from ..system.mpi_library import before_finalize
from ..system.process import PerProcess
from .engine import Engine
from .program import Program

PAUSE_S = 0.02  # before a look
_END_S = 5.0  # that the end of the program waits for a look to end


@dataclass(slots=True)
class Awaited:
    """A program that is being enqueued, or has been."""

    program: Program
    deadline: float
    rank: int
    look: Callable[[], None]  # raises what ends the program: calls of other ranks that differ
    ends: list[Event]  # which are used again
    end: Event | None = None  # when it has been enqueued

    @property
    def engines(self) -> Sequence[Engine]:
        """Those whose steps the host does not wait for."""
        return self.program.watched

    def is_over(self) -> bool:
        """Return whether it has ended; abort its engines if it should have."""
        if self.end is not None and self.end.is_over():
            self.ends.append(self.end)
            return True
        reason = self._reason()
        over = reason is not None
        for engine in self.engines:
            try:
                engine.check(self.program.waits)
                if reason is not None:
                    engine.abort(self.program.waits, reason)
            except Exception:  # its own, which calls raise from now on
                over = True
        return over

    def _reason(self) -> Exception | None:
        """Return why it is to end now."""
        try:
            self.look()
        except Exception as error:
            return error
        late = time.monotonic() > self.deadline
        return StepTimeout(self.program.waits, self.rank, self.program.peers) if late else None


class Watchdog:
    """Looks at programs in a thread of its own, as long as there are some."""

    def __init__(self) -> None:
        self._awaited: deque[tuple[Device, Awaited]] = deque()
        self._looks: deque[tuple[Device, Callable[[], None]]] = deque()
        self._there, self._looking = threading.Event(), threading.Lock()
        self._ended = False
        threads.start("pyncclx watchdog", self._run)
        before_finalize(self._end)

    def add(self, device: Device, awaited: Awaited) -> None:
        """Look at a program from now on; those of one stream end in the order in which they are given."""
        self._awaited.append((device, awaited))
        if not self._there.is_set():
            self._there.set()

    def look_once(self, device: Device, look: Callable[[], None]) -> None:
        """Call a function after a pause; what it raises is for calls to raise."""
        self._looks.append((device, look))
        if not self._there.is_set():
            self._there.set()

    def _run(self) -> None:
        while not self._ended:
            self._there.wait()
            while self._awaited or self._looks:
                time.sleep(PAUSE_S)
                with self._looking:
                    if self._ended:  # MPI may be finalized
                        return
                    self.look()
            self._there.clear()
            if self._awaited or self._looks:  # it came between the last two lines
                self._there.set()

    def _end(self) -> None:
        """Look no more: MPI is about to be finalized."""
        self._ended = True
        if self._looking.acquire(timeout=_END_S):  # a look has ended
            self._looking.release()

    def look(self) -> None:
        """Do all looks that are due."""
        self._look_at_programs()
        for _ in range(len(self._looks)):
            device, look = self._looks.popleft()
            with device.attached(), suppress(Exception):
                look()

    def _look_at_programs(self) -> None:
        """Look at the first program of each engine, and at the next one if it has ended: others have more time."""
        going_on: set[Engine] = set()
        looks, left = set(), []
        for _ in range(len(self._awaited)):
            device, awaited = self._awaited.popleft()
            if going_on.isdisjoint(awaited.engines):
                with device.attached():
                    if awaited.is_over():
                        looks.add(awaited.look)
                        continue
                going_on.update(awaited.engines)
            left.append((device, awaited))
        self._awaited.extendleft(reversed(left))
        for look in looks:  # at calls that have ended: other ranks may wait for their texts
            with suppress(Exception):  # calls raise it
                look()


WATCHDOG = PerProcess(Watchdog)


class Watch:
    """Has the watchdog look at the programs of one communicator.

    Parameters
    ----------
    device : Device
    rank : int
    look : callable
        As `Awaited.look`.
    """

    def __init__(self, device: Device, rank: int, look: Callable[[], None]) -> None:
        self._device, self._rank, self._look = device, rank, look
        self._timeout_s = settings.TIMEOUT.get()
        self._ends: list[Event] = []  # of programs that are over: to make one takes longer than to record it

    def begin(self, program: Program) -> Awaited:
        """Have a program watched that is enqueued next."""
        awaited = Awaited(program, time.monotonic() + self._timeout_s, self._rank, self._look, self._ends)
        WATCHDOG.get().add(self._device, awaited)
        return awaited

    def end(self, awaited: Awaited, stream: Any) -> None:
        """Take note that it has been enqueued on a stream, which is not being captured."""
        try:
            end = self._ends.pop()
        except IndexError:
            end = self._device.event()
        end.record_eager(stream)
        awaited.end = end
