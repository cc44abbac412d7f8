"""Failures: each is kept, given to hooks and the log, and makes this rank dump its record."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any, TypeVar

from .. import events
from ..errors import Aborted, CollectiveMismatch, PeerTimeout, RankFailed, Revoked
from ..system.notes import note
from ..system.process import PerProcess
from . import dump, layout, ring
from .ring import RING, Ring
from .sites import is_inside

E = TypeVar("E", bound=BaseException)

_FIELDS = (  # of the exceptions of errors.py
    *("ranks", "world_ranks", "reason", "host", "operation", "epoch", "rank", "peer", "expected", "seen", "missing"),
    *("source", "wanted", "capacity", "detail"),
)
_PLAIN = (int, str, tuple)
_PAUSE_S = 10.0  # between two dumps that nobody has asked for: failures lead to others


class _Reporter:
    """Reports the failures of this process."""

    def __init__(self) -> None:
        self._texts: set[str] = set()
        self._dumped = -_PAUSE_S

    def report(self, error: BaseException) -> None:
        text = f"{type(error).__name__}: {error}"
        own = RING.get()
        if text in self._texts or own is None or isinstance(error, Revoked):  # which a program does on purpose
            return
        self._texts.add(text)
        own.failures.append(_failure(error))
        if time.monotonic() - self._dumped > _PAUSE_S:
            self._dumped = time.monotonic()
            write(own, text)


    def has_just_dumped_for(self, error: BaseException) -> bool:
        """Whether a dump for what ranks raise for each other is there: what follows has nothing new."""
        of_others = isinstance(error, (PeerTimeout, RankFailed, Aborted, CollectiveMismatch))
        return of_others and time.monotonic() - self._dumped < _PAUSE_S


_REPORTER = PerProcess(_Reporter)


def noted(error: E) -> E:
    """Report a failure that is about to be raised, once, and return it; it never raises anything itself."""
    with suppress(Exception):
        kind = events.MISMATCH if isinstance(error, CollectiveMismatch) else events.FAILURE
        events.failed(kind, error)
        _REPORTER.get().report(error)
    return error


def _failure(error: BaseException, *, unhandled: bool = False) -> dict[str, Any]:
    fields = {name: getattr(error, name) for name in _FIELDS if isinstance(getattr(error, name, None), _PLAIN)}
    kind, text = type(error).__name__, str(error)
    trace = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in trace if not is_inside(frame.filename)]
    site = f"{own[-1].filename}:{own[-1].lineno} in {own[-1].name}" if own else ""
    about = {"time_ns": time.time_ns(), "kind": kind, "text": text, "site": site, "unhandled": unhandled}
    return about | {"fields": fields}


def write(own: Ring, reason: str) -> None:
    """Dump, and report where to."""
    path = dump.write(own, reason, dump.folder())
    if path is not None:
        rank, command = own.facts["rank"], f"python -m pyncclx analyze {path.parent}"
        note(logging.WARNING, f"rank {rank}: {_short(reason)}: what it did is in {path}; {command}")


def _short(reason: str, most: int = 100) -> str:
    line = (reason.splitlines() or [""])[0]
    return line if len(line) <= most else f"{line[:most]}…"


def watch(own: Ring) -> None:
    """Dump what ends the program by an exception, and on SIGUSR1."""
    sys.excepthook = _followed(sys.excepthook, own)
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL:
        _Signals(own)


ring.when_made.append(watch)


def _followed(hook: Callable[..., Any], own: Ring) -> Callable[..., Any]:
    def both(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        with suppress(Exception):
            _end_by(own, error)
        hook(kind, error, trace)

    return both


def _end_by(own: Ring, error: BaseException) -> None:
    """Report an exception that ends the program."""
    own.is_now(layout.FAILED)
    own.failures.append(_failure(error, unhandled=True))
    if own.facts["size"] > 1 and not _REPORTER.get().has_just_dumped_for(error):
        write(own, f"ended by {type(error).__name__}: {error}")


class _Signals:
    """Dumps on SIGUSR1, whatever the main thread does: the number of a signal goes to a pipe that a thread reads.

    Python's own handlers run in the main thread, between two of its instructions, so not while it is in MPI.
    """

    def __init__(self, own: Ring) -> None:
        self._own = own
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        if before != -1:  # another library's, which finds signals in it
            signal.set_wakeup_fd(before)
            signal.signal(signal.SIGUSR1, self._handle)
            return
        signal.signal(signal.SIGUSR1, _ignore)
        threading.Thread(target=self._read, args=[reading], name="pyncclx dumps", daemon=True).start()

    def _read(self, reading: int) -> None:
        while numbers := os.read(reading, 64):
            if signal.SIGUSR1 in numbers:
                self._dump()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._dump()

    def _dump(self) -> None:
        with suppress(Exception):
            write(self._own, "SIGUSR1")


def _ignore(number: int, frame: FrameType | None) -> None:
    """For a signal that is handled elsewhere."""
