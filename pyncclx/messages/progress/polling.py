"""Poll for the messages of open receives, and launch their kernels.

Every message has a logical clock; see `LamportClock` in `context.py`. The program's calls launch receiving kernels in
the order of these clocks. The monitor thread launches only kernels that wait for no sender, so their order does not
matter.
"""

from __future__ import annotations

import operator
import os
import time
from collections.abc import Callable, Sequence

from mpi4py import MPI

from mpi_bootstrap.waiting import let_go_on

from ... import backends
from ...backends import Device
from ...requests.open_receives import LOCK, OPEN_RECEIVES, OpenReceive
from ...system.process import PerProcess
from .monitor import MessageMonitor
from .pending_sends import OF_PROCESS, UNFOLLOWED, Follows, PendingSends, begin_to_follow, is_under_way

_CLOCK = operator.attrgetter("clock")
# Seconds to wait for more messages before a launch: only the time of a few launches, because senders may wait (not
# measured).
GATHER_S = 50e-6


class ReceiveProgress:
    """Polls for messages of this process's open receives, and launches their kernels.

    Attributes
    ----------
    device : Device
    pending_sends : PendingSends
    monitor : MessageMonitor
    round : int
        Number of the current or last poll of all open receives.
    """

    def __init__(self, device: Device) -> None:
        self.device, self._turn, self.round = device, 0, 0
        self._holds_all = not device.launches_at_once
        # Receives that are being launched. If their request is dropped meanwhile, it must not post them again.
        self._leaving: list[OpenReceive] = []
        self.monitor = MessageMonitor(self)
        self.pending_sends = PendingSends(self.monitor)

    @property
    def turn(self) -> int:
        """Counter that changes when the program begins a request or polls for messages."""
        return self._turn + self.pending_sends.begun

    def post(self, receive: OpenReceive) -> None:
        """Open a receive: every later poll also checks for its message."""
        with LOCK:
            self._turn, receive.is_posted = self._turn + 1, True
            if receive not in OPEN_RECEIVES and receive not in self._leaving:
                OPEN_RECEIVES.append(receive)
            if self.monitor.asleep:
                self.monitor.wake()

    def claim(self, receive: OpenReceive) -> bool:
        """Return whether the caller may wait in MPI for the message of a receive.

        The caller may wait if no other receive is open; this receive is then removed from the open ones. Otherwise the
        receive is posted, unless another thread has just launched it.
        """
        with LOCK:
            if receive.launched:
                return False
            if OPEN_RECEIVES not in ([], [receive]) or (UNFOLLOWED and open_host_receives()):
                self.post(receive)
                return False
            OPEN_RECEIVES.clear()
            return True

    def check(self) -> None:
        """Raise the error that ended the monitor thread, once.

        Call it first in every call that sends, receives or waits.
        """
        if self.monitor.failure is not None:
            with LOCK:
                self.monitor.raise_failure()

    @property
    def idle(self) -> bool:
        """Whether no open receive and no pending send needs the program's calls."""
        has_sends = self.pending_sends.kept and not OF_PROCESS
        return not (OPEN_RECEIVES or (UNFOLLOWED and open_host_receives()) or has_sends)

    @property
    def at_rest(self) -> bool:
        """Whether no receive is open and MPI has no work left for any request."""
        return not OPEN_RECEIVES and not self.pending_sends

    @property
    def may_have_more(self) -> bool:
        """Whether MPI may have work left that belongs to no request."""
        return self.pending_sends.may_have_more

    def launch_arrived(self) -> None:
        """Launch the receives whose messages have arrived, in the order of their clocks.

        A kernel may wait until the sender has written the data. Unless a call waits for the receive, its kernel runs on
        another stream than the program's. Later work of the program must not wait for the sender, because the sender
        may wait for that work. An abandoned receive stays on its stream, so it is launched only when its data is ready.
        """
        if self.monitor.failure is not None:
            self.check()
        with LOCK:
            self._turn += 1
            if self.pending_sends.kept and not OF_PROCESS:
                self.pending_sends.go_on()
            arrived = self._arrived()
            if arrived:
                self._launch(arrived)

    def _launch(self, arrived: list[OpenReceive]) -> None:
        """Launch receives whose messages have arrived, except those that are held back."""
        for receive in arrived[:]:
            if (self._holds_all or not receive.is_awaited) and receive.is_held_back:
                arrived.remove(receive)
        if not arrived:
            return
        before, self._leaving = self._leaving, [*self._leaving, *arrived]
        try:
            for receive in arrived[:]:
                if receive not in OPEN_RECEIVES:  # a signal handler or destructor of the program has launched it
                    arrived.remove(receive)
                    continue
                OPEN_RECEIVES.remove(receive)
                if not receive.is_awaited:
                    receive.leave_stream()
            first = 0
            while first < len(arrived):
                first = arrived[first].launch_first(arrived, first)
        except BaseException:
            _open_again(arrived)
            raise
        finally:
            self._leaving = before

    def launch_all(self, receives: Sequence[OpenReceive]) -> None:
        """Wait until all these receives are launched, in one launch if possible.

        For GATHER_S seconds, wait for the messages of all of them. Then launch those whose messages have arrived.
        """
        deadline, left = time.perf_counter() + GATHER_S, list(receives)
        for receive in left:
            receive.is_awaited = True
        while left:
            if self.monitor.failure is not None:
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
        """Run, on the monitor thread, work that peers may wait for, without waiting."""
        self.launch_due()
        self.pending_sends.go_on()

    def launch_due(self) -> None:
        """Launch arrived receives that a sender may wait for and whose data is ready."""
        with LOCK:
            for receive in self._arrived():
                if receive.is_due() and receive in OPEN_RECEIVES:
                    OPEN_RECEIVES.remove(receive)
                    before, self._leaving = self._leaving, [*self._leaving, receive]
                    try:
                        receive.launch()
                    except BaseException:
                        _open_again([receive])
                        raise
                    finally:
                        self._leaving = before

    def _arrived(self) -> list[OpenReceive]:
        """Poll, and return the receives whose messages have arrived, sorted by clock."""
        if UNFOLLOWED:
            serve_host_receives()
        found, arrived = True, []
        # Poll again: a message that causally precedes the one just received may have arrived meanwhile.
        while found:
            self.round, found = self.round + 1, False
            for receive in OPEN_RECEIVES:
                if not (receive.has_arrived or receive.is_polled):
                    receive.is_polled = True
                    try:
                        found |= receive.poll()
                    finally:
                        receive.is_polled = False
        for receive in OPEN_RECEIVES:
            if receive.has_arrived:
                arrived.append(receive)
        arrived.sort(key=_CLOCK)
        return arrived

    def wait_until(self, over: Callable[[], bool]) -> None:
        """Launch arrived receives until `over()` is true."""
        while not over():
            self.launch_arrived()
            os.sched_yield()

    def wait(self, request: MPI.Request, hopeless: Callable[[float], Exception | None]) -> None:
        """Launch arrived receives until a request of MPI is complete.

        `hopeless` is called with the seconds waited, and returns an exception to raise, or None to continue.
        """
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


def _open_again(receives: Sequence[OpenReceive]) -> None:
    """Open receives again after an interrupted launch; a later call launches them."""
    for receive in receives:
        if not receive.launched and receive not in OPEN_RECEIVES:
            OPEN_RECEIVES.append(receive)


def _of_process() -> ReceiveProgress:
    progress = ReceiveProgress(backends.select())
    if MPI.Query_thread() == MPI.THREAD_MULTIPLE:
        begin_to_follow(progress.pending_sends)
    return progress


#: Created before this process waits in a kernel for the first time.
PROGRESS = PerProcess(_of_process)


def open_host_receives() -> list[Follows]:
    """Return the open receives into host arrays that only the program's calls serve."""
    with LOCK:
        UNFOLLOWED[:] = filter(is_under_way, UNFOLLOWED)
        return [each for each in UNFOLLOWED if isinstance(each, Follows)]


def serve_host_receives() -> None:
    """Make progress with receives into host arrays, as the monitor thread would."""
    receives = open_host_receives()
    if receives:
        let_go_on()
    for receive in receives:
        receive.go_on()
