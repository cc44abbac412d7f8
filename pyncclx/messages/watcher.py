"""A thread that lets open receives go on while the program is elsewhere: in a barrier, or in work of its own.

MPI demands it: a send may wait, on its stream or on the host, until its receiver has read the data, and a receiver that
has posted the receive need not call anything for that.
"""

from __future__ import annotations

import atexit
import threading
import time
from contextlib import suppress
from typing import Protocol

from mpi4py import MPI

from ..backends import Device

PAUSE_S = 1e-3  # of a program that looks for its messages within this time it takes no notice
LONGEST_PAUSE_S = 16e-3  # as long as the program does so: each look takes the interpreter from it
QUIET = 64  # pauses in which nothing was open, until it sleeps: to be woken takes the program longer than a pause
_END_S = 5.0  # that the end of the program waits for a look to end


class Receives(Protocol):
    """The open receives, as it sees them."""

    device: Device
    turn: int

    @property
    def idle(self) -> bool:
        """Whether none is open."""

    def launch_due(self) -> None:
        """Launch those that senders may be waiting for."""


class Watcher:
    """The thread; it begins with the first receive that is posted, where MPI may be called by any thread.

    Attributes
    ----------
    asleep : bool
        Whether it wants to be woken when a receive is posted.
    """

    def __init__(self, receives: Receives) -> None:
        self.asleep = MPI.Query_thread() == MPI.THREAD_MULTIPLE
        self._receives = receives
        self._posted = threading.Event()
        self._thread: threading.Thread | None = None
        self._ended = False

    def wake(self) -> None:
        """There is an open receive; for one thread at a time."""
        self.asleep = False
        self._posted.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="pyncclx receives", daemon=True)
            with suppress(RuntimeError):  # the interpreter is about to end, and begins no more of them
                self._thread.start()
                atexit.register(self._end)

    def _end(self) -> None:
        """Call MPI no more: it is finalized after this."""
        assert self._thread is not None
        self._ended = True
        self._posted.set()
        self._thread.join(_END_S)

    def _run(self) -> None:
        # What goes wrong with a receive belongs to the call that waits for it, which finds the receive as it was.
        with suppress(Exception), self._receives.device.attached():
            pause, turn, quiet = PAUSE_S, -1, 0
            while not self._ended:
                time.sleep(pause)
                idle, turn_before, turn = self._receives.idle, turn, self._receives.turn
                stuck = not idle and turn == turn_before
                if stuck and not MPI.Is_finalized():
                    self._receives.launch_due()
                pause = PAUSE_S if stuck else min(2 * pause, LONGEST_PAUSE_S)
                quiet = quiet + 1 if idle else 0
                if quiet == QUIET:
                    self._sleep()
                    pause, quiet = PAUSE_S, 0

    def _sleep(self) -> None:
        """Wait until a receive is posted."""
        self._posted.clear()
        self.asleep = not self._ended
        if self._receives.idle and not self._ended:  # asked only now: whoever posts next sees that this one sleeps
            self._posted.wait()
        self.asleep = False
