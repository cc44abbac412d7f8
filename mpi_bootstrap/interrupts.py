"""SIGINT during a collective: raised where peers learn of it, or afterwards."""

import ctypes
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_LONGEST_S = 0.5  # longest deferral by a wait for other ranks
_ACTION_NBYTES = 1024
_LIBRARY = ctypes.CDLL(None)


class _Interrupts:
    """State of SIGINT in this process while it is deferred."""

    def __init__(self) -> None:
        self.deferred = self.pending = False
        self.since = 0.0  # time of the signal
        self.handler: Any = None  # the program's

    def raise_pending(self) -> None:
        """Call the program's handler if a signal is pending."""
        if self.pending:
            self.pending = False
            self.handler(signal.SIGINT, None)


_INTERRUPTS = _Interrupts()


def _receive(number: int, frame: FrameType | None) -> None:
    """Handle SIGINT during a collective: call the program's handler now or later."""
    if not _INTERRUPTS.pending:
        _INTERRUPTS.pending, _INTERRUPTS.since = True, time.monotonic()
    if not _INTERRUPTS.deferred:
        _INTERRUPTS.raise_pending()


@contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Defer SIGINT to the end of the block, or to an `interrupts_allowed` inside it.

    Otherwise a rank could leave between two rendezvous, and the others would wait for it in the second one. Has no
    effect in other threads than the main one, where Python raises no signals. Without a handler of Python's it has none
    either: a handler that was set in C stays.
    """
    if threading.current_thread() is not threading.main_thread() or _INTERRUPTS.deferred:
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    if before is _receive:
        with _deferring(True):
            yield
    elif callable(before):
        _INTERRUPTS.handler = before
        action = _action()
        signal.signal(signal.SIGINT, _receive)
        if _handler(action) != _handler(_action()):
            # The handler was set in C, and Python's functions do not return it.
            signal.signal(signal.SIGINT, before)
            _LIBRARY.sigaction(int(signal.SIGINT), action, None)
            yield
            return
        try:
            with _deferring(True):
                yield
        finally:
            signal.signal(signal.SIGINT, before)
            _INTERRUPTS.raise_pending()
    else:
        yield


def _action() -> ctypes.Array[ctypes.c_char]:
    """Return SIGINT's struct sigaction, at the beginning of a buffer larger than any."""
    action = ctypes.create_string_buffer(_ACTION_NBYTES)
    _LIBRARY.sigaction(int(signal.SIGINT), None, action)
    return action


def _handler(action: ctypes.Array[ctypes.c_char]) -> bytes:
    """Return the handler of an action, its first field."""
    return action.raw[: ctypes.sizeof(ctypes.c_void_p)]


@contextmanager
def interrupts_allowed() -> Iterator[None]:
    """Raise deferred and new SIGINT in this block, inside an `interrupts_deferred`."""
    if threading.current_thread() is not threading.main_thread() or not _INTERRUPTS.deferred:
        yield
        return
    with _deferring(False):
        _INTERRUPTS.raise_pending()
        yield


def raise_if_overdue() -> None:
    """Raise SIGINT that was deferred for too long by a wait for other ranks."""
    overdue = _INTERRUPTS.pending and time.monotonic() - _INTERRUPTS.since > _LONGEST_S
    if overdue and threading.current_thread() is threading.main_thread():
        _INTERRUPTS.raise_pending()


@contextmanager
def _deferring(deferred: bool) -> Iterator[None]:
    before, _INTERRUPTS.deferred = _INTERRUPTS.deferred, deferred
    try:
        yield
    finally:
        _INTERRUPTS.deferred = before
