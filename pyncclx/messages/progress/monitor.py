"""The monitor thread, which makes progress while the program makes no calls.

MPI guarantees progress: a receiver that has posted a receive need not call MPI again for the message to be received,
and a sender need not call MPI again for the message to arrive. Without the thread this would not hold, because a send
may wait, on its stream or on the host, until the receiver has read the data.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

from mpi4py import MPI

from mpi_bootstrap import interrupts_deferred
from mpi_bootstrap.polls import poll

from ...system import threads
from ...system.mpi_library import before_finalize

# Cost of the thread: `Irecv`, `Isend` and `Waitall` of 1 KB to the own rank took 46 to 47 µs without the thread and 47
# to 49 µs with it (host device, medians of 10 000, November 2026; not measured on GPUs).

# Seconds between two polls. If the program polls within this time, the thread does not.
PAUSE_S = 1e-3
# Seconds between two polls while the program polls too. Each poll takes the GIL from the program.
LONGEST_PAUSE_S = 16e-3
# Number of pauses without an open message before the thread sleeps. Waking it costs the program more than a pause.
QUIET = 64
# Seconds to wait at exit for a poll in progress.
_END_S = 5.0
#: `ReceiveProgress`, whose module imports this one.
_Receives = Any


class MessageMonitor:
    """The monitor thread of messages.

    It starts with the first message that may need it, if MPI allows calls from any thread.

    Attributes
    ----------
    asleep : bool
        Whether the thread sleeps, so that a new message must call `wake`.
    failure : BaseException or None
        Error that ended the thread.
    """

    failure: BaseException | None = None

    def __init__(self, receives: _Receives) -> None:
        self.asleep = MPI.Query_thread() == MPI.THREAD_MULTIPLE
        self._receives = receives
        self._posted = threads.Bell()
        self._thread: threading.Thread | None = None
        self._ended = False

    def wake(self) -> None:
        """Wake the thread if it is asleep. Only one thread may call this at a time."""
        if not self.asleep:
            return
        self.asleep = False
        try:
            self._posted.ring()
            if self._thread is None:
                # If a signal handler raised here, the thread would run, but `_thread` would be None.
                with interrupts_deferred():
                    self._thread = threads.start("pyncclx messages", self._run)
                # Without a thread the interpreter is exiting, and only calls make progress.
                if self._thread is not None:
                    before_finalize(self._end)
        except BaseException:
            # An interrupt may have prevented the wake-up.
            self.asleep = True
            raise

    def raise_failure(self) -> None:
        """Raise the error that ended the thread, and start another thread if needed.

        Only one thread may call this at a time.
        """
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
        self._posted.ring()
        if self._thread is not None and not sys.is_finalizing():
            self._thread.join(_END_S)

    def _run(self) -> None:
        try:
            with self._receives.device.attached():
                self._watch()
        except BaseException as error:
            # After the end of the program, no call can raise the error.
            if not self._ended:
                self.failure = error

    def _watch(self) -> None:
        pause, turn, quiet = PAUSE_S, -1, 0
        while not self._ended:
            time.sleep(pause)
            at_rest, turn_before, turn = self._receives.at_rest, turn, self._receives.turn
            stuck = not at_rest and turn == turn_before
            # The program's polls do only a part of the work.
            more = pause == LONGEST_PAUSE_S and (not at_rest or self._receives.may_have_more)
            if stuck or more:
                poll(self._receives.go_on)
            pause = PAUSE_S if stuck else min(2 * pause, LONGEST_PAUSE_S)
            quiet = quiet + 1 if at_rest else 0
            if quiet == QUIET:
                self._sleep()
                pause, quiet = PAUSE_S, 0

    def _sleep(self) -> None:
        """Sleep until `wake`; meanwhile poll if `may_have_more`."""
        self._posted.wait(0.0)
        self.asleep = not self._ended
        # Test this after setting `asleep`, because from then on new messages call `wake`.
        if self._receives.at_rest and not self._ended:
            while not self._posted.wait(LONGEST_PAUSE_S if self._receives.may_have_more else None):
                poll(self._receives.go_on)
        self.asleep = False
