"""What the process does with its open receives: it looks for their messages, and launches their kernels."""

from __future__ import annotations

import os
from collections.abc import Callable

from mpi4py import MPI

from ..backends import Device
from ..requests.open_receives import LOCK, OPEN_RECEIVES, OpenReceive
from .watcher import Watcher


class ReceiveProgress:
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

    def post(self, receive: OpenReceive) -> None:
        """Look for its message from now on, whatever this process waits for."""
        with LOCK:
            self.turn += 1
            if receive not in OPEN_RECEIVES:
                OPEN_RECEIVES.append(receive)
            if self._watcher.asleep:
                self._watcher.wake()

    def alone(self, receive: OpenReceive) -> bool:
        """Whether nothing else is awaited: then the caller may wait in MPI, and nobody else will look. Else post it."""
        with LOCK:
            if receive.launched:  # by another thread, just now
                return False
            if OPEN_RECEIVES not in ([], [receive]):
                self.post(receive)
                return False
            OPEN_RECEIVES.clear()
            return True

    @property
    def idle(self) -> bool:
        """Whether every receive so far has its kernel launched."""
        return not OPEN_RECEIVES

    def progress(self) -> None:
        """Launch the receives whose messages have come, those first that may have led to the others.

        A kernel may wait for the data, behind what the sender has still to do. As long as nobody asks for it, that does
        not get in front of what the program's stream is given next, which the sender may wait for.
        """
        with LOCK:
            self.turn += 1
            for receive in self._come():
                OPEN_RECEIVES.remove(receive)
                if not receive.is_awaited:
                    receive.leave_stream()
                receive.launch()

    def launch_due(self) -> None:
        """Launch those that senders may be waiting for, of which nothing else will have to wait: for the watcher."""
        with LOCK:
            for receive in self._come():
                if receive.is_due():
                    OPEN_RECEIVES.remove(receive)
                    receive.launch()

    def _come(self) -> list[OpenReceive]:
        """Look for messages; the receives that have got theirs, in the order of the clocks."""
        # What may have led to a message that was just seen is here by now, though it was not a moment ago.
        while [receive for receive in OPEN_RECEIVES if not receive.has_arrived and receive.poll()]:
            pass
        return sorted((receive for receive in OPEN_RECEIVES if receive.has_arrived), key=lambda each: each.clock)

    def wait_until(self, over: Callable[[], bool]) -> None:
        """Wait for something while receives go on."""
        while not over():
            self.progress()
            os.sched_yield()

    def wait(self, request: MPI.Request) -> None:
        """Wait for a request of MPI while receives go on."""
        self.wait_until(lambda: self.idle or request.Test())
        request.Wait()
