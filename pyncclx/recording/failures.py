"""Report failures: record them, pass them to hooks and the log, and dump."""

from __future__ import annotations

import logging
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any, TypeVar

from mpi_bootstrap.own_errors import own_errors_suppressed

from .. import events
from ..errors import Aborted, CollectiveMismatch, PeerTimeout, RankFailed, Revoked
from ..system.notes import note
from ..system.process import PerProcess, in_children
from ..system.signals import SIGNALS, has_default_action
from . import dump, layout, ring
from .facts import innermost
from .ring import RING, Ring

E = TypeVar("E", bound=BaseException)

# Attributes of the exceptions of errors.py that the record includes.
_FIELDS = (
    *("ranks", "world_ranks", "reason", "host", "operation", "epoch", "rank", "peer", "expected", "seen", "missing"),
    *("source", "wanted", "capacity", "detail"),
)
_PLAIN = (int, str, tuple)
# Least seconds between two automatic dumps, because one failure causes others.
_PAUSE_S = 10.0
_LONGEST_REASON = 100  # characters in the log


class _Reporter:
    """Reporter of this process's failures."""

    def __init__(self) -> None:
        self._texts: set[str] = set()
        self._dumped = -_PAUSE_S

    def report(self, error: BaseException) -> None:
        text = f"{type(error).__name__}: {error}"
        own = RING.get()
        # A program revokes a communicator on purpose, so that is no failure to report.
        if text in self._texts or own is None or isinstance(error, Revoked):
            return
        self._texts.add(text)
        own.failures.append(_failure(error))
        if time.monotonic() - self._dumped > _PAUSE_S:
            self._dumped = time.monotonic()
            write(own, text)


    def has_just_dumped_for(self, error: BaseException) -> bool:
        """Return whether a recent dump covers a failure that other ranks raise too."""
        of_others = isinstance(error, (PeerTimeout, RankFailed, Aborted, CollectiveMismatch))
        return of_others and time.monotonic() - self._dumped < _PAUSE_S


_REPORTER = PerProcess(_Reporter)


def noted(error: E) -> E:
    """Report a failure that is about to be raised, and return it.

    Hooks get it each time; failures with equal texts are recorded once. This function never raises anything itself.
    """
    with own_errors_suppressed():
        kind = events.MISMATCH if isinstance(error, CollectiveMismatch) else events.FAILURE
        events.failed(kind, error)
        _REPORTER.get().report(error)
    return error


def _failure(error: BaseException, *, unhandled: bool = False) -> dict[str, Any]:
    fields = {name: getattr(error, name) for name in _FIELDS if isinstance(getattr(error, name, None), _PLAIN)}
    kind, text = type(error).__name__, str(error)
    site = innermost(traceback.extract_tb(error.__traceback__))
    about = {"time_ns": time.time_ns(), "kind": kind, "text": text, "site": site, "unhandled": unhandled}
    return about | {"fields": fields}


def write(own: Ring, reason: str) -> None:
    """Write a dump, and log its path."""
    path = dump.write(own, reason, dump.folder())
    if path is not None:
        rank, command = own.facts["rank"], f"python -m pyncclx analyze {path.parent}"
        line = (reason.splitlines() or [""])[0]
        short = line if len(line) <= _LONGEST_REASON else f"{line[:_LONGEST_REASON]}…"
        note(logging.WARNING, f"rank {rank}: {short}: what it did is in {path}; {command}")


def watch(own: Ring) -> None:
    """Dump on uncaught exceptions, and on SIGUSR1 unless the program handles it."""
    sys.excepthook = _followed(sys.excepthook, own)
    if threading.current_thread() is threading.main_thread() and has_default_action(signal.SIGUSR1):
        signal.signal(signal.SIGUSR1, _ignore)
        SIGNALS.get().functions.append(lambda numbers: _dump_for(numbers, own))
        in_children(_restore_default)


ring.when_made.append(watch)


def _dump_for(numbers: bytes, own: Ring) -> None:
    """Dump on SIGUSR1, in the thread of `system.signals`.

    The main thread may be in MPI, or wait for a kernel.
    """
    if signal.SIGUSR1 in numbers and signal.getsignal(signal.SIGUSR1) is _ignore:
        write(own, "SIGUSR1")


def _ignore(number: int, frame: FrameType | None) -> None:
    """Do nothing, because the signal is handled in another thread."""


def _restore_default() -> None:
    if signal.getsignal(signal.SIGUSR1) is _ignore:
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)


def _followed(hook: Callable[..., Any], own: Ring) -> Callable[..., Any]:
    def both(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        # A forked child does not dump.
        if RING.made is own:
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
