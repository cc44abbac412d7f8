"""A thread that receives signals at once, whatever the main thread does.

Python's handlers run in the main thread between two instructions, so not while it is in MPI or waits for a kernel.
Python writes the number of each signal for which it has a handler to a descriptor (`signal.set_wakeup_fd`). Here that
descriptor is a socket, because its messages name the writing process, which may be a forked child.

An event loop sets a descriptor of its own while it runs, and none afterwards. So a function replaces
`signal.set_wakeup_fd`. It keeps the loop's descriptor, and the thread forwards the numbers to it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import struct
from collections.abc import Callable
from contextlib import suppress

from . import threads
from .process import PerProcess, in_children

_AT_ONCE = 64
_CREDENTIALS = struct.Struct("3i")  # struct ucred: process, user, group
_ACTION_NBYTES = 1024  # more than any struct sigaction, which begins with the handler


def has_default_action(number: int) -> bool:
    """Return whether a signal has its default action, with no handler of Python or C."""
    if signal.getsignal(number) != signal.SIG_DFL:
        return False
    action = ctypes.create_string_buffer(_ACTION_NBYTES)
    known = ctypes.CDLL(None).sigaction(int(number), None, action) == 0
    return known and not any(action.raw[: ctypes.sizeof(ctypes.c_void_p)])


class Signals:
    """The socket, and the thread that reads it.

    Attributes
    ----------
    functions : list of callables
        Each is called in the thread with signal numbers, as bytes.
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
        """Set the program's descriptor for signal numbers, and return its last one.

        Replaces `signal.set_wakeup_fd`.
        """
        self._set(fd, warn_on_full_buffer=warn_on_full_buffer)  # raises for an invalid descriptor
        self._set(self._writing.fileno(), warn_on_full_buffer=False)
        before, self._other = self._other, fd
        return before

    def _leave(self) -> None:
        """Restore Python's function and the program's descriptor, in a forked child."""
        signal.set_wakeup_fd = self._set
        with suppress(ValueError, OSError):  # The descriptor may be closed.
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
