"""Log messages of the library to the logger "pyncclx", or to stderr."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from . import settings, threads
from .process import held

LOGGER = logging.getLogger("pyncclx")
LONG_S = 1.0  # work that takes longer is reported
_LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG)  # shown for each value of PYNCCLX_VERBOSE
_warned: set[str] = held(set())


def note(level: int, text: str) -> None:
    """Log a sentence to the program's logging handlers.

    Without handlers it is written to stderr, if PYNCCLX_VERBOSE allows it.
    """
    if LOGGER.hasHandlers():
        LOGGER.log(level, text)
    elif level >= _LEVELS[settings.VERBOSE.get()]:
        print(f"pyncclx: {text}", file=sys.stderr, flush=True)


def warn_once(text: str) -> None:
    """Log a warning, once in this process."""
    if text not in _warned:
        _warned.add(text)
        note(logging.WARNING, text)


@contextmanager
def reported_if_long(what: str, where: Callable[[], object], *, reports: bool) -> Iterator[None]:
    """Log how long the `with` block took to compile `what`.

    If it takes longer than `LONG_S`, another thread also logs the time so far, and the folder `where()`. Nothing is
    logged unless `reports` is True.
    """
    if not reports:
        yield
        return
    began = time.monotonic()

    def report() -> None:
        note(logging.INFO, f"compiling {what}, {time.monotonic() - began:.1f} s so far; kept in {where()}")

    try:
        with called_if_long(report):
            yield
    finally:
        took = time.monotonic() - began
        note(logging.INFO if took > LONG_S else logging.DEBUG, f"{what}: ready after {took:.1f} s")


@contextmanager
def called_if_long(report: Callable[[], None]) -> Iterator[None]:
    """Call `report` in another thread if the `with` block takes more than `LONG_S`."""
    over = threads.Bell()

    def wait() -> None:
        if not over.wait(LONG_S):
            report()

    threads.start("pyncclx notes", wait)
    try:
        yield
    finally:
        over.ring()
