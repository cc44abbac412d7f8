"""Signals while the program waits for a kernel, on a GPU or the host device: Python's handlers cannot run then.

Each signal is written to a pipe at once (`signal.set_wakeup_fd`), which the detector's thread reads. If the main thread
has not come to run Python code some time later, and a kernel of a communicator is under way, its wait is ended: the
main thread goes on, and its handler runs.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import threading
import time

GRACE_S = 0.4  # from the signal to the end of the wait
_NUMBERS = {signal.SIGINT, signal.SIGTERM}
_AT_ONCE = 4096


class Interrupts:
    """The pipe, and whether the main thread has run Python code since the last signal."""

    def __init__(self) -> None:
        self._read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._read, select.POLLIN)
        self._before = -1
        self._since = 0.0  # when a signal came that no handler is known to have received; 0: none
        self._asked = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(self._received)
        if threading.current_thread() is threading.main_thread():  # else Python refuses
            self._before = signal.set_wakeup_fd(write, warn_on_full_buffer=False)

    def _received(self, _: int | None) -> int:
        """Called in the main thread, between two steps of Python code."""
        self._since = 0.0
        return 0

    def pause(self, seconds: float) -> None:
        """Sleep; less if there is a signal, or if the main thread's time for one is over."""
        if self._since > 0:
            seconds = min(seconds, max(self._since + GRACE_S - time.monotonic(), 0.001))
        if not self._poll.poll(seconds * 1000):
            return
        numbers = os.read(self._read, _AT_ONCE)
        if self._before >= 0:  # another library's, which had it first
            os.write(self._before, numbers)
        if any(number in _NUMBERS and callable(signal.getsignal(number)) for number in numbers):
            self._since = time.monotonic()
            ctypes.pythonapi.Py_AddPendingCall(self._asked, None)

    def is_overdue(self) -> bool:
        """Whether a signal has come some time ago, and the main thread has not run since; true once."""
        overdue = self._since > 0 and time.monotonic() - self._since > GRACE_S
        if overdue:
            self._since = 0.0
        return overdue
