"""A thread that moves messages on while the program does not: it is in a barrier, or computes.

MPI demands this: a send may wait, on its stream or on the host, until its receiver has read the data, and a receiver
that has posted the receive need not call anything for that. Nor need a sender, for its message to arrive.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import Protocol

from mpi4py import MPI

from ..backends import Device
from ..system import threads
from ..system.mpi_library import before_finalize

# What the thread costs: `Irecv`, `Isend` and `Waitall` of 1 KB to the own rank took 46 to 47 µs without it and 47 to 49
# with it (host device, medians of 10 000, November 2026; on GPUs not measured).
PAUSE_S = 1e-3  # between two looks; a program that looks for its messages within this time is left alone
LONGEST_PAUSE_S = 16e-3  # while the program does so: each look takes the interpreter from it
QUIET = 64  # pauses without an open message until it sleeps: to wake it takes the program longer than a pause
_END_S = 5.0  # that the end of the program waits for a look to end


class Receives(Protocol):
    """The part of `ReceiveProgress` that the thread uses."""

    device: Device

    @property
    def turn(self) -> int:
        """Another number each time that the program calls MPI."""

    @property
    def at_rest(self) -> bool:
        """Whether no receive is open, and MPI has nothing left to do that a request stands for."""

    @property
    def may_have_more(self) -> bool:
        """Whether MPI may have something left to do that no request stands for."""

    def go_on(self) -> None:
        """Do what others may be waiting for."""


class Watcher:
    """The thread. It starts with the first message that it may have to move on, if any thread may call MPI.

    Attributes
    ----------
    asleep : bool
        Whether `wake` must be called when there is one.
    failure : BaseException or None
        What has ended the thread.
    """

    failure: BaseException | None = None

    def __init__(self, receives: Receives) -> None:
        self.asleep = MPI.Query_thread() == MPI.THREAD_MULTIPLE
        self._receives = receives
        self._posted = threading.Event()
        self._thread: threading.Thread | None = None
        self._ended = False

    def wake(self) -> None:
        """Let it look for open messages, if it is asleep; called by one thread at a time."""
        if not self.asleep:
            return
        self.asleep = False
        self._posted.set()
        if self._thread is None:
            self._thread = threads.start("pyncclx messages", self._run)
            if self._thread is not None:  # else the interpreter ends, and calls alone move messages on
                before_finalize(self._end)

    def raise_failure(self) -> None:
        """Raise what has ended the thread; another one looks for open messages from now on. Called by one thread."""
        failure, self.failure = self.failure, None
        if failure is None:
            return
        self._thread, self.asleep = None, True
        if not self._receives.at_rest:
            self.wake()
        raise failure

    def _end(self) -> None:
        """End the thread before MPI is finalized."""
        self._ended = True
        self._posted.set()
        if self._thread is not None and not sys.is_finalizing():
            self._thread.join(_END_S)

    def _run(self) -> None:
        try:
            with self._receives.device.attached():
                self._watch()
        except BaseException as error:
            if not self._ended:  # else there is no call any more to raise it
                self.failure = error

    def _watch(self) -> None:
        pause, turn, quiet = PAUSE_S, -1, 0
        while not self._ended:
            time.sleep(pause)
            at_rest, turn_before, turn = self._receives.at_rest, turn, self._receives.turn
            stuck = not at_rest and turn == turn_before
            # The program's looks do a part only of what may be left.
            more = pause == LONGEST_PAUSE_S and (not at_rest or self._receives.may_have_more)
            if stuck or more:
                self._receives.go_on()
            pause = PAUSE_S if stuck else min(2 * pause, LONGEST_PAUSE_S)
            quiet = quiet + 1 if at_rest else 0
            if quiet == QUIET:
                self._sleep()
                pause, quiet = PAUSE_S, 0

    def _sleep(self) -> None:
        """Wait until it is woken."""
        self._posted.clear()
        self.asleep = not self._ended
        if self._receives.at_rest and not self._ended:  # tested after `asleep` is set: from then on `wake` is called
            while not self._posted.wait(LONGEST_PAUSE_S if self._receives.may_have_more else None):
                self._receives.go_on()
        self.asleep = False
