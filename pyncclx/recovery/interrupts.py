"""Signals during a wait for a kernel, when Python's handlers cannot run.

The thread of `system.signals` receives each signal at once. If the main thread has run no Python code some time later,
and a communicator's kernel runs, the kernel's wait is ended. Then the main thread continues and its handler runs.
"""

from __future__ import annotations

import ctypes
import signal
import time

from ..system.signals import SIGNALS
from ..system.threads import Bell

GRACE_S = 0.4  # from a signal to the end of the wait
_NUMBERS = {signal.SIGINT, signal.SIGTERM}


class Interrupts:
    """State of the last signal: whether the main thread has run Python code since."""

    def __init__(self) -> None:
        self._since = 0.0  # time of a signal that no handler is known to have received; 0: none
        self._asked = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(self._received)
        self._woken = Bell()
        SIGNALS.get().functions.append(self._note)

    def _received(self, _: int | None) -> int:
        """Record that the main thread runs Python code; called in it."""
        self._since = 0.0
        return 0

    def _note(self, numbers: bytes) -> None:
        if any(number in _NUMBERS and callable(signal.getsignal(number)) for number in numbers):
            self._since = time.monotonic()
            ctypes.pythonapi.Py_AddPendingCall(self._asked, None)
            self.wake()

    def wake(self) -> None:
        """End a pause."""
        self._woken.ring()

    def pause(self, seconds: float) -> None:
        """Sleep until a signal, or until the main thread's time for one has passed."""
        if self._since > 0:
            seconds = min(seconds, max(self._since + GRACE_S - time.monotonic(), 0.001))
        self._woken.wait(seconds)

    def is_overdue(self) -> bool:
        """Return whether a signal is overdue in the main thread; true once per signal."""
        overdue = self._since > 0 and time.monotonic() - self._since > GRACE_S
        if overdue:
            self._since = 0.0
        return overdue
