"""Timeouts for NCCL, whose kernels and calls have no deadline of their own.

A thread polls whether enqueued programs have ended. If a program has not ended within PYNCCLX_TIMEOUT, or if NCCL has
found an error, the thread aborts the engine, which ends the engine's kernels. The thread also watches a program while
the host enqueues it: at the first step between two ranks NCCL connects them, in a call that blocks until both have
reached the step. The thread cannot see replays of captured graphs.

If MPI moves the data, the host compares calls while it waits in MPI. While a rank waits in a kernel for a rank of its
node, the thread compares calls, because that rank may be waiting for a rank that has made a different call.

NCCL does not show which ranks it waits for. With MPI, the rank that a step waits for is known, but that rank may itself
wait for another one. So before a timeout the rank calls the roll (`roll_call.py`). The thread answers the roll calls of
other ranks; for this it wakes up four times a second while there are communicators over nodes.

The same thread sends the labels of cached calls that have not been sent yet (`comparison.py`).
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from mpi4py import MPI

from mpi_bootstrap.polls import poll

from ..backends import Device, Event
from ..errors import StepTimeout
from ..system import settings, threads
from ..system.mpi_library import before_finalize
from ..system.process import PerProcess
from .engine import Engine
from .program import Program
from .roll_call import ANSWERS_S, POLL_S, POLLS, RollCall

PAUSE_S = 0.02  # seconds before each poll
_END_S = 5.0  # seconds to wait at exit for a poll in progress


@dataclass(slots=True)
class Awaited:
    """A program that is being or has been enqueued."""

    watch: Watch
    program: Program
    number: int  # the number of its call
    deadline: float
    end: Event | None = None  # recorded after the program was enqueued

    def is_over(self) -> bool:
        """Return whether the program has ended; abort its engines after its deadline."""
        if self.end is not None and self.end.is_over():
            self.watch.ends.append(self.end)
            return True
        reason = self._reason()
        over = reason is not None
        for engine in self.program.watched:
            try:
                engine.check(self.program.waits)
                if reason is not None:
                    engine.abort(self.program.waits, reason)
            except Exception:  # the engine's own error, which calls raise from now on
                over = True
        return over

    def _reason(self) -> Exception | None:
        """Return why the program must end now; None if it need not."""
        try:
            self.watch.look()
        except Exception as error:
            return error
        if time.monotonic() <= self.deadline:
            return None
        watch, program = self.watch, self.program
        return StepTimeout(program.waits, watch.rank, watch.absent(self.number, program.peers))


class StepMonitor:
    """A thread that polls the programs of all communicators while there are any."""

    def __init__(self) -> None:
        self._awaited: deque[Awaited] = deque()
        self._looks: deque[tuple[Device, Callable[[], None]]] = deque()
        self._rolls: deque[weakref.ref[RollCall]] = deque()
        self._there, self._looking = threads.Bell(), threading.Lock()
        self._ended = False
        threads.start("pyncclx monitor", self._run)
        before_finalize(self._end)

    def add(self, awaited: Awaited) -> None:
        """Watch a program. Programs of one stream end in the order of these calls."""
        self._awaited.append(awaited)
        self._there.ring()

    def look_once(self, device: Device, look: Callable[[], None]) -> None:
        """Call `look` once, after a pause, and ignore its errors: later calls raise them."""
        self._looks.append((device, look))
        self._there.ring()

    def answer(self, roll: RollCall) -> None:
        """Answer other ranks' roll calls on a communicator from now on."""
        self._rolls.append(weakref.ref(roll))
        self._there.ring()

    def absent(self, roll: RollCall, number: int, peers: tuple[int, ...]) -> tuple[int, ...]:
        """Return the ranks that have not begun call `number`; `peers` if all have."""
        roll.ask()
        for _ in range(POLLS):
            if not (roll.is_open and roll.absent(number)) or self._ended:
                break
            time.sleep(POLL_S)
            poll(self._answer_all)
        return roll.late(number, peers) if roll.is_open else peers

    def _run(self) -> None:
        while not self._ended:
            self._there.wait(ANSWERS_S if self._rolls else None)
            with self._looking:
                if not self._ended:
                    poll(self._answer_all)
            while self._awaited or self._looks:
                time.sleep(PAUSE_S)
                with self._looking:
                    if self._ended:  # MPI may be finalized
                        return
                    poll(self.look)

    def _end(self) -> None:
        """Stop polling: MPI is about to be finalized."""
        self._ended = True
        if self._looking.acquire(timeout=_END_S):  # a poll has ended
            self._looking.release()

    def _answer_all(self) -> None:
        for _ in range(len(self._rolls)):
            try:
                reference = self._rolls.popleft()
            except IndexError:  # another thread answers
                return
            roll = reference()
            if roll is not None and roll.is_open:
                with suppress(MPI.Exception):  # a rank has failed
                    roll.answer()
                self._rolls.append(reference)

    def look(self) -> None:
        """Poll all programs, answer, and call the functions that are due."""
        self._answer_all()
        self._look_at_programs()
        for _ in range(len(self._looks)):
            device, look = self._looks.popleft()
            with device.attached(), suppress(Exception):
                look()

    def _look_at_programs(self) -> None:
        """Poll the first program of each engine, and the next one if that has ended.

        Later programs of an engine have more time.
        """
        going_on: set[Engine] = set()
        ended, left = set(), []
        for _ in range(len(self._awaited)):
            awaited = self._awaited.popleft()
            if going_on.isdisjoint(awaited.program.watched):
                with awaited.watch.device.attached():
                    if awaited.is_over():
                        ended.add(awaited.watch)
                        continue
                going_on.update(awaited.program.watched)
            left.append(awaited)
        self._awaited.extendleft(reversed(left))
        for watch in ended:  # other ranks may wait for the labels of calls that have ended
            with suppress(Exception):  # later calls raise it
                watch.look()


STEP_MONITOR = PerProcess(StepMonitor)


class Watch:
    """The monitor's interface for the programs of one communicator.

    Parameters
    ----------
    device : Device
    rank : int
    look : callable
        Raises if programs must end, because calls of other ranks differ.
    """

    def __init__(self, device: Device, rank: int, look: Callable[[], None]) -> None:
        self.device, self.rank, self.look = device, rank, look
        self._roll: RollCall | None = None
        self._timeout_s = settings.TIMEOUT.get()
        self.ends: list[Event] = []  # events of programs that have ended, for reuse: a new event costs more

    def call_roll(self, roll: RollCall) -> None:
        """From now on, call the roll before a program times out, and answer other ranks."""
        self._roll = roll
        STEP_MONITOR.get().answer(roll)

    def begin(self, program: Program, number: int) -> Awaited:
        """Watch a program that is about to be enqueued as the call of this number."""
        awaited = Awaited(self, program, number, time.monotonic() + self._timeout_s)
        STEP_MONITOR.get().add(awaited)
        return awaited

    def absent(self, number: int, peers: tuple[int, ...]) -> tuple[int, ...]:
        """Return the ranks that have not begun call `number`; `peers` if none is known."""
        return peers if self._roll is None else STEP_MONITOR.get().absent(self._roll, number, peers)

    def end(self, awaited: Awaited, stream: Any) -> None:
        """Record that a program was enqueued on a stream, which is not being captured."""
        try:
            end = self.ends.pop()
        except IndexError:
            end = self.device.event()
        end.record_eager(stream)
        awaited.end = end
