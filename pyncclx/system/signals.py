"""A thread that receives signals even while the main thread is busy.

Python's handlers run in the main thread between two Python instructions. So they do not run while that thread is in MPI
or waits for a kernel. But Python immediately writes the number of each signal that has a handler to a file descriptor,
which `signal.set_wakeup_fd` sets. This module sets a socket. A message of a socket identifies the process that wrote
it, which may be a forked child.

An event loop, such as asyncio's, sets its own descriptor while it runs, and removes it afterwards. So this module
replaces `signal.set_wakeup_fd` by a function that stores the event loop's descriptor. The thread forwards the numbers
to it.

`Interrupts` detects that a signal's handler cannot run. If the main thread has run no Python code for `GRACE_S` seconds
after a signal, and a kernel of a communicator runs, the failure detector ends the kernel's wait. Then the main thread
continues, and the handler runs.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress

from . import threads
from .process import PerProcess, in_children
from .threads import Bell

_AT_ONCE = 64
_CREDENTIALS = struct.Struct("3i")  # struct ucred: process, user, group
_ACTION_NBYTES = 1024  # more than any struct sigaction, which begins with the handler
GRACE_S = 0.4  # seconds from a signal to the end of a kernel's wait
_NUMBERS = {signal.SIGINT, signal.SIGTERM}


def has_default_action(number: int) -> bool:
    """Return whether a signal has its default action, without a Python or C handler."""
    if signal.getsignal(number) != signal.SIG_DFL:
        return False
    action = ctypes.create_string_buffer(_ACTION_NBYTES)
    known = ctypes.CDLL(None).sigaction(int(number), None, action) == 0
    return known and not any(action.raw[: ctypes.sizeof(ctypes.c_void_p)])


class Signals:
    """The socket for signal numbers, and the thread that reads it.

    Attributes
    ----------
    functions : list of callables
        The thread calls each with signal numbers, as bytes.
    """

    def __init__(self) -> None:
        self.functions: list[Callable[[bytes], object]] = []
        self._reading, self._writing = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._reading.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._writing.setblocking(False)
        self._set, self._other = signal.set_wakeup_fd, -1  # Python's function, and the program's descriptor
        self._pending = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(self._install)
        if threads.start("pyncclx signals", self._read) is not None:
            ctypes.pythonapi.Py_AddPendingCall(self._pending, None)  # runs in the main thread

    def _install(self, _: int | None) -> int:
        self._other = self._set(self._writing.fileno(), warn_on_full_buffer=False)
        signal.set_wakeup_fd = self._set_other
        in_children(self._leave)
        return 0

    def _set_other(self, fd: int, /, *, warn_on_full_buffer: bool = True) -> int:
        """Set the program's descriptor for signal numbers, and return the previous one.

        It replaces `signal.set_wakeup_fd`.
        """
        self._set(fd, warn_on_full_buffer=warn_on_full_buffer)  # raises for an invalid descriptor
        self._set(self._writing.fileno(), warn_on_full_buffer=False)
        before, self._other = self._other, fd
        return before

    def _leave(self) -> None:
        """Restore Python's function and the program's descriptor, in a forked child."""
        signal.set_wakeup_fd = self._set
        with suppress(ValueError, OSError):  # the descriptor may be closed
            self._set(self._other)

    def _read(self) -> None:
        while True:
            numbers, details, *_ = self._reading.recvmsg(_AT_ONCE, socket.CMSG_SPACE(_CREDENTIALS.size))
            if any(_CREDENTIALS.unpack(data)[0] != os.getpid() for *_, data in details):
                continue
            if self._other >= 0:
                with suppress(OSError):
                    os.write(self._other, numbers)
            for function in self.functions:
                with suppress(Exception):
                    function(numbers)


SIGNALS = PerProcess(Signals, lasting=True)


class Interrupts:
    """A watch on the main thread: has it run Python code since the last signal?"""

    def __init__(self) -> None:
        self._since = 0.0  # time of a signal after which the main thread has run no Python code yet; 0: none
        self._asked = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(self._received)
        self._woken = Bell()
        SIGNALS.get().functions.append(self._note)

    def _received(self, _: int | None) -> int:
        """Record that the main thread runs Python code; called in the main thread."""
        self._since = 0.0
        return 0

    def _note(self, numbers: bytes) -> None:
        if any(number in _NUMBERS and callable(signal.getsignal(number)) for number in numbers):
            self._since = time.monotonic()
            ctypes.pythonapi.Py_AddPendingCall(self._asked, None)
            self.wake()

    def wake(self) -> None:
        """Make the current `pause` return, or the next one."""
        self._woken.ring()

    def pause(self, seconds: float) -> None:
        """Sleep for `seconds`, or less if a signal arrives or becomes overdue."""
        if self._since > 0:
            seconds = min(seconds, max(self._since + GRACE_S - time.monotonic(), 0.001))
        self._woken.wait(seconds)

    def is_overdue(self) -> bool:
        """Return whether a signal is overdue in the main thread; true once per signal."""
        overdue = self._since > 0 and time.monotonic() - self._since > GRACE_S
        if overdue:
            self._since = 0.0
        return overdue
