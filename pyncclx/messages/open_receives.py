"""The receives of this process that are open: posted, and without a kernel on a stream so far.

Whoever gives a stream what may wait for peers looks here first. It may wait for the very peer whose message a receive
is for, and that one for the receive, which must not come behind it on the same stream, then.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Protocol

from mpi4py import MPI

from ..devices import Device
from .watcher import Watcher


class Awaited(Protocol):
    """A receive that is open."""

    clock: int
    come: bool  # its message
    launched: bool
    wanted: bool  # by a call that makes the program's stream wait for it

    def arrived(self) -> bool:
        """Look whether its envelope is here; True once."""

    def leave(self) -> None:
        """Leave the order of its stream, as that is by now."""

    def is_due(self) -> bool:
        """Whether the sender may be waiting for nothing but this receive's kernel; then it has left its stream."""

    def launch(self) -> None:
        """Move the data."""


OPEN: list[Awaited] = []
LOCK = threading.RLock()  # of whoever changes the list, or looks for a message of a receive in it


def make_way() -> None:
    """Let open receives go on, whatever their streams are given to wait for after this."""
    if OPEN:
        with LOCK:
            for receive in OPEN:
                receive.leave()


class OpenReceives:
    """What the process does with its open receives.

    Attributes
    ----------
    device : Device
    turn : int
        Another number each time that the program posts a receive or looks for messages.
    """

    def __init__(self, device: Device) -> None:
        self.device, self.turn = device, 0
        self._watcher = Watcher(self)

    def post(self, receive: Awaited) -> None:
        """Look for its message from now on, whatever this process waits for."""
        with LOCK:
            self.turn += 1
            if receive not in OPEN:
                OPEN.append(receive)
            if self._watcher.asleep:
                self._watcher.wake()

    def alone(self, receive: Awaited) -> bool:
        """Whether nothing else is awaited: then the caller may wait in MPI, and nobody else will look. Else post it."""
        with LOCK:
            if receive.launched:  # by another thread, just now
                return False
            if OPEN not in ([], [receive]):
                self.post(receive)
                return False
            OPEN.clear()
            return True

    @property
    def idle(self) -> bool:
        """Whether every receive so far has its kernel launched."""
        return not OPEN

    def progress(self) -> None:
        """Launch the receives whose messages have come, those first that may have led to the others.

        A kernel may wait for the data, behind what the sender has still to do. As long as nobody asks for it, that does
        not get in front of what the program's stream is given next, which the sender may wait for.
        """
        with LOCK:
            self.turn += 1
            for receive in self._come():
                OPEN.remove(receive)
                if not receive.wanted:
                    receive.leave()
                receive.launch()

    def help(self) -> None:
        """Launch those that senders may be waiting for, of which nothing else will have to wait: for the watcher."""
        with LOCK:
            for receive in self._come():
                if receive.is_due():
                    OPEN.remove(receive)
                    receive.launch()

    def _come(self) -> list[Awaited]:
        """Look for messages; the receives that have got theirs, in the order of the clocks."""
        # What may have led to a message that was just seen is here by now, though it was not a moment ago.
        while [receive for receive in OPEN if not receive.come and receive.arrived()]:
            pass
        return sorted((receive for receive in OPEN if receive.come), key=lambda each: each.clock)

    def wait_until(self, over: Callable[[], bool]) -> None:
        """Wait for something while receives go on."""
        while not over():
            self.progress()
            os.sched_yield()

    def wait(self, request: MPI.Request) -> None:
        """Wait for a request of MPI while receives go on."""
        self.wait_until(lambda: self.idle or request.Test())
        request.Wait()
