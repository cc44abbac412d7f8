"""SIGINT in a collective: it is raised where the other ranks learn of it, or when the collective is over."""

import ctypes
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_LONGEST_S = 0.5  # that a wait for other ranks puts it off
_ACTION_NBYTES = 1024
_LIBRARY = ctypes.CDLL(None)


class _Interrupts:
    """SIGINT in this process, while it is put off."""

    def __init__(self) -> None:
        self.deferred = self.pending = False
        self.since = 0.0  # when it came
        self.handler: Any = None  # the program's

    def raise_pending(self) -> None:
        """Call the program's handler, if there was a signal."""
        if self.pending:
            self.pending = False
            self.handler(signal.SIGINT, None)


_INTERRUPTS = _Interrupts()


def _receive(number: int, frame: FrameType | None) -> None:
    """The handler in a collective."""
    if not _INTERRUPTS.pending:
        _INTERRUPTS.pending, _INTERRUPTS.since = True, time.monotonic()
    if not _INTERRUPTS.deferred:
        _INTERRUPTS.raise_pending()


@contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Put SIGINT off until the end of the block, or the beginning of a block of `interrupts_allowed` in it.

    Without this, a rank could leave between two meetings, and the others would wait for it in the second one. Nothing
    changes in threads beside the main one, where Python raises no signals, and without a handler of Python's: a handler
    that was set in C stays.
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
        if _handler(action) != _handler(_action()):  # it was set in C: Python's functions do not name it
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
    """Return what the system does for SIGINT: a struct sigaction, at the beginning of more bytes than any has."""
    action = ctypes.create_string_buffer(_ACTION_NBYTES)
    _LIBRARY.sigaction(int(signal.SIGINT), None, action)
    return action


def _handler(action: ctypes.Array[ctypes.c_char]) -> bytes:
    """Return the handler of an action, its first field."""
    return action.raw[: ctypes.sizeof(ctypes.c_void_p)]


@contextmanager
def interrupts_allowed() -> Iterator[None]:
    """In a block of `interrupts_deferred`: raise SIGINT that was put off, and what comes until the end."""
    if threading.current_thread() is not threading.main_thread() or not _INTERRUPTS.deferred:
        yield
        return
    with _deferring(False):
        _INTERRUPTS.raise_pending()
        yield


def raise_if_overdue() -> None:
    """Raise SIGINT that was put off for a wait that does not end: other ranks do not come, or come too late."""
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
