"""Threads, forks, communicators that come and go, and a rank that keeps the interpreter to itself."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..communicators import Alone
from ..memory import pattern
from ..program import Act, Program
from .collectives import Collective
from .messages import Message
from .persistent import PersistentCollectives

if TYPE_CHECKING:
    from ..execute import Run

TAGS_OF_A_THREAD = 1000
# Communicators that threads use at once for the first time may find no room for kernels; then MPI reduces copies, and
# may drop NaN.
_CALL_IN_THREAD: dict[str, Any] = {"later": 0, "nan": False}
CHILD_S = 6.0  # that a child may take to end


@dataclass(frozen=True, repr=False)
class Threads(Act):
    """Two threads of each rank perform acts at once, each on a communicator of its own."""

    parts: tuple[tuple[Act, ...], ...] = ((), ())
    times: int = 1
    comm: str = "own"

    def duplicates(self) -> int:
        return len(self.parts)

    def legal(self) -> Threads:
        """Let each act use the communicator of its thread, and no meeting beside it."""
        parts = tuple(tuple(_in_thread(each) for each in part) for part in self.parts)
        return dataclasses.replace(self, parts=parts, comm="own")

    def perform(self, run: Run, index: int) -> Iterator[int]:
        errors: list[BaseException] = []
        runs = []
        for number, part in enumerate(self.parts):
            comms = Alone(run.comms.of(self, index, number), run.side.beside.rank)
            first = TAGS_OF_A_THREAD * (number + 1)
            runs.append(type(run)(run.side, Program(run.program.ranks, part * self.times), comms, first))
            runs[-1].kept = run.kept  # until the end of the program

        def work(one: Run) -> None:
            try:
                with run.place.stream():
                    one.perform()
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(one,), daemon=True) for one in runs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        for one in runs:
            run.notes += one.notes
        yield from ()


def _in_thread(act: Act) -> Act:
    """Return an act that needs no other communicator and no meeting beside it."""
    changes: dict[str, Any] = {"comm": "base"}
    if isinstance(act, Message) and act.send in ("Rsend", "Irsend"):
        changes["send"] = "Isend"
    if isinstance(act, Collective):
        changes |= _CALL_IN_THREAD
    if isinstance(act, PersistentCollectives):
        changes["calls"] = tuple(dataclasses.replace(call, **_CALL_IN_THREAD) for call in act.calls)
    return dataclasses.replace(act, **changes).legal()


@dataclass(frozen=True, repr=False)
class Fork(Act):
    """A rank forks, and its child ends in some way."""

    rank: int = 0
    end: str = "_exit"  # exit, raise, SIGTERM
    wait: bool = True  # whether the rank waits for its child at once, or at the end of the program

    def perform(self, run: Run, index: int) -> Iterator[int]:
        if run.side.beside.rank != self.rank % run.side.beside.size:
            return
        child = os.fork()
        if child == 0:
            self._child(may_raise=not run.side.aborts)
        if not self.wait:
            yield 4
        run.note(f"{index} child", self._ended(child))

    def _child(self, *, may_raise: bool) -> None:
        """End this process; under a runner that lets MPI abort after an exception, without one."""
        if self.end == "_exit":
            os._exit(3)
        if self.end == "SIGTERM":
            time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)
        if self.end == "raise" and may_raise:
            raise KeyboardInterrupt("of a child")
        sys.exit(0)

    @staticmethod
    def _ended(child: int) -> str:
        """Wait for the child; say whether it ended."""
        end = time.monotonic() + CHILD_S
        while time.monotonic() < end:
            if os.waitpid(child, os.WNOHANG)[0]:
                return "ended"
            time.sleep(0.002)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return "did not end"


@dataclass(frozen=True, repr=False)
class Passing(Act):
    """Communicators are made, used, and freed or dropped."""

    times: int = 2
    how: str = "Dup"  # Split, Create
    drop: bool = False
    count: int = 3
    after: int = 0  # acts after which they are freed

    def perform(self, run: Run, index: int) -> Iterator[int]:
        comm, made = run.comms.of(self, index), []
        for turn in range(self.times):
            if self.how == "Dup":
                one = comm.Dup()
            elif self.how == "Split":
                one = comm.Split(comm.rank % 2, -comm.rank)
            else:
                one = comm.Create(comm.Get_group())
            send = run.place.on_device(pattern("f8", self.count, index, comm.rank, turn))
            recv = run.place.on_device(np.zeros(self.count))
            one.Allreduce(send, recv)
            run.note(f"{index} {self.how} {turn}", recv)
            made.append(one)
        if self.after:
            yield self.after
        for one in made:
            if not self.drop:
                one.Free()


@dataclass(frozen=True, repr=False)
class Busy(Act):
    """One rank computes, with the interpreter's lock or without, or sleeps, while the others go on."""

    rank: int = 0
    seconds: float = 0.01
    keeps_lock: bool = False

    def perform(self, run: Run, index: int) -> Iterator[int]:
        if run.side.beside.rank == self.rank % run.side.beside.size:
            end = time.monotonic() + self.seconds
            while time.monotonic() < end:
                if self.keeps_lock:
                    pow(3, 40001, 10**4001 + 7)
                else:
                    time.sleep(0.001)
        yield from ()

