"""Signals while the program waits for a kernel, on a GPU or the host device: Python's handlers cannot run then.

The thread of `system.signals` gets each signal at once. If the main thread has not come to run Python code some time
later, and a kernel of a communicator is under way, its wait is ended: the main thread goes on, and its handler runs.
"""

from __future__ import annotations

import ctypes
import signal
import threading
import time

from ..system.signals import SIGNALS

GRACE_S = 0.4  # from the signal to the end of the wait
_NUMBERS = {signal.SIGINT, signal.SIGTERM}


class Interrupts:
    """Whether the main thread has run Python code since the last signal."""

    def __init__(self) -> None:
        self._since = 0.0  # when a signal came that no handler is known to have received; 0: none
        self._asked = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(self._received)
        self._woken = threading.Event()
        SIGNALS.get().functions.append(self._note)

    def _received(self, _: int | None) -> int:
        """Called in the main thread, between two steps of Python code."""
        self._since = 0.0
        return 0

    def _note(self, numbers: bytes) -> None:
        if any(number in _NUMBERS and callable(signal.getsignal(number)) for number in numbers):
            self._since = time.monotonic()
            ctypes.pythonapi.Py_AddPendingCall(self._asked, None)
            self.wake()

    def wake(self) -> None:
        """End a pause."""
        self._woken.set()

    def pause(self, seconds: float) -> None:
        """Sleep; less if there is a signal, or if the main thread's time for one is over."""
        if self._since > 0:
            seconds = min(seconds, max(self._since + GRACE_S - time.monotonic(), 0.001))
        if self._woken.wait(seconds):
            self._woken.clear()

    def is_overdue(self) -> bool:
        """Whether a signal has come some time ago, and the main thread has not run since; true once."""
        overdue = self._since > 0 and time.monotonic() - self._since > GRACE_S
        if overdue:
            self._since = 0.0
        return overdue
