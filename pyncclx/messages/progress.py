"""Progress of open receives: look for their messages, and launch the kernels that move the data.

Kernels that receive are launched in the order of their messages' clocks, see `clock.py`. Those that the watcher
launches wait for nothing, so their order does not matter.
"""

from __future__ import annotations

import operator
import os
import time
from collections.abc import Callable, Sequence

from mpi4py import MPI

from .. import backends
from ..backends import Device
from ..requests.open_receives import LOCK, OPEN_RECEIVES, OpenReceive
from ..system.process import PerProcess
from .unsent import OF_PROCESS, Unsent
from .watcher import Watcher

_CLOCK = operator.attrgetter("clock")
GATHER_S = 50e-6  # as long as some launches take; a sender may wait for one of the receives (not measured)


class ReceiveProgress:
    """Moves the open receives of the process on.

    Attributes
    ----------
    device : Device
    unsent : Unsent
    watcher : Watcher
    """

    def __init__(self, device: Device) -> None:
        self.device, self._turn = device, 0
        self._holds_all = not device.launches_at_once
        # Taken out to be launched. A request that is dropped meanwhile must not post its receive again.
        self._leaving: list[OpenReceive] = []
        self.watcher = Watcher(self)
        self.unsent = Unsent(self.watcher)

    @property
    def turn(self) -> int:
        """Another number each time that the program begins a request or looks for messages."""
        return self._turn + self.unsent.begun

    def post(self, receive: OpenReceive) -> None:
        """Look for its message from now on, whatever this process waits for."""
        with LOCK:
            self._turn, receive.is_posted = self._turn + 1, True
            if receive not in OPEN_RECEIVES and receive not in self._leaving:
                OPEN_RECEIVES.append(receive)
            if self.watcher.asleep:
                self.watcher.wake()

    def claim(self, receive: OpenReceive) -> bool:
        """Take a receive out if no other is open: only its caller looks for the message then, and may wait in MPI.

        Otherwise the receive is posted, unless another thread has just launched it.
        """
        with LOCK:
            if receive.launched:
                return False
            if OPEN_RECEIVES not in ([], [receive]):
                self.post(receive)
                return False
            OPEN_RECEIVES.clear()
            return True

    def check(self) -> None:
        """Raise what has ended the watcher's thread, once; every call that sends, receives or waits begins with it."""
        if self.watcher.failure is not None:
            with LOCK:
                self.watcher.raise_failure()

    @property
    def idle(self) -> bool:
        """Whether no receive is open."""
        return not OPEN_RECEIVES

    @property
    def at_rest(self) -> bool:
        """Whether no receive is open, and MPI has nothing left to do that a request stands for."""
        return not OPEN_RECEIVES and not self.unsent

    @property
    def may_have_more(self) -> bool:
        """Whether MPI may have something left to do that no request stands for."""
        return self.unsent.may_have_more

    def launch_arrived(self) -> None:
        """Launch the receives whose messages have arrived, those first that may have led to the others.

        A kernel may wait for the data, behind what the sender has still to do. Unless a call waits for the receive, the
        kernel leaves the program's stream, so that it does not come before what the stream is given next: the sender
        may wait for that. One that is abandoned stays there, so it is launched once its data can be read.
        """
        if self.watcher.failure is not None:
            self.check()
        with LOCK:
            self._turn += 1
            arrived = self._arrived()
            if arrived:
                self._launch(arrived)

    def _launch(self, arrived: list[OpenReceive]) -> None:
        """Launch receives whose messages have arrived, but those that are held back."""
        for receive in arrived[:]:
            if (self._holds_all or not receive.is_awaited) and receive.is_held_back:
                arrived.remove(receive)
        if not arrived:
            return
        before, self._leaving = self._leaving, [*self._leaving, *arrived]
        try:
            for receive in arrived:
                OPEN_RECEIVES.remove(receive)
                if not receive.is_awaited:
                    receive.leave_stream()
            first = 0
            while first < len(arrived):
                first = arrived[first].launch_first(arrived, first)
        finally:
            self._leaving = before

    def launch_all(self, receives: Sequence[OpenReceive]) -> None:
        """Wait until some receives are launched; give their messages a moment to arrive, so that one launch does."""
        deadline, left = time.perf_counter() + GATHER_S, list(receives)
        for receive in left:
            receive.is_awaited = True
        while left:
            if self.watcher.failure is not None:
                self.check()
            with LOCK:
                self._turn += 1
                arrived, has_come = self._arrived(), True
                for receive in left:
                    has_come = has_come and (receive.has_arrived or receive.launched)
                if has_come or time.perf_counter() > deadline:
                    self._launch(arrived)
            left, before = [], left
            for receive in before:
                if not receive.launched:
                    left.append(receive)
            if left:
                os.sched_yield()

    def go_on(self) -> None:
        """Do for the watcher what others may be waiting for and what waits for nothing."""
        self.launch_due()
        self.unsent.go_on()

    def launch_due(self) -> None:
        """Launch the receives that senders may be waiting for, and whose kernels wait for nothing."""
        with LOCK:
            for receive in self._arrived():
                if receive.is_due():
                    OPEN_RECEIVES.remove(receive)
                    before, self._leaving = self._leaving, [*self._leaving, receive]
                    try:
                        receive.launch()
                    finally:
                        self._leaving = before

    def _arrived(self) -> list[OpenReceive]:
        """Look for messages; return the receives whose message has arrived, in the order of the clocks."""
        found, arrived = True, []
        while found:  # What may have led to a message that was just seen is here by now, though not a moment ago.
            found = False
            for receive in OPEN_RECEIVES:
                found |= not receive.has_arrived and receive.poll()
        for receive in OPEN_RECEIVES:
            if receive.has_arrived:
                arrived.append(receive)
        arrived.sort(key=_CLOCK)
        return arrived

    def wait_until(self, over: Callable[[], bool]) -> None:
        """Move receives on until `over()` is true."""
        while not over():
            self.launch_arrived()
            os.sched_yield()

    def wait(self, request: MPI.Request, hopeless: Callable[[float], Exception | None]) -> None:
        """Move receives on until a request of MPI's is over; raise what `hopeless` returns for the seconds waited."""
        began: float | None = None
        while not request.Test():
            now = time.monotonic()
            began = now if began is None else began
            reason = hopeless(now - began)
            if reason is not None:
                raise reason
            if not self.idle:
                self.launch_arrived()
            os.sched_yield()


def _of_process() -> ReceiveProgress:
    progress = ReceiveProgress(backends.select())
    if MPI.Query_thread() == MPI.THREAD_MULTIPLE:
        OF_PROCESS.append(progress.unsent)
    return progress


#: Made before this process waits in a kernel for the first time.
PROGRESS = PerProcess(_of_process)
