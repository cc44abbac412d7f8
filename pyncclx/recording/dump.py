"""Dump a rank's record, stacks and kernels' progress after a failure."""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
import threading
import time
import traceback
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from ..system import settings
from ..system.notes import note
from ..system.process import lock
from . import folders
from .calls import CALLS, Calls
from .facts import innermost, line
from .layout import Reading
from .ring import RING, Ring

FORMAT = 1
_LONGEST_STACK = 40  # frames
_FAILURES_KEPT = 20


class Progressing(Protocol):
    """The device side of a communicator, which reports the progress of its kernels."""

    def progress(self) -> dict[str, Any]:
        """Return the progress, without waiting for the device."""


#: The writer of entries of each communicator whose kernels report progress.
PROGRESSING: weakref.WeakKeyDictionary[Progressing, Calls] = weakref.WeakKeyDictionary()
_writing = lock()


def folder() -> Path:
    """Return the folder of this job's dumps: PYNCCLX_DUMP, or a temporary folder."""
    return settings.DUMP.get() or _of_all_jobs() / folders.job()


def _of_all_jobs() -> Path:
    return Path(tempfile.gettempdir()) / f"pyncclx-dump-{os.getuid()}"


def dump(reason: str = "asked for", *, to: str | os.PathLike[str] | None = None) -> Path | None:
    """Write this rank's last calls and present stacks to a file.

    Any rank may call this function at any time; it is not collective. ``python -m pyncclx analyze`` reads the files of
    all ranks. pyncclx calls it after a timeout, a failed rank, a mismatch or an uncaught exception, and on SIGUSR1.

    Parameters
    ----------
    reason : str
    to : path, optional
        The folder; default: PYNCCLX_DUMP, or a temporary folder.

    Returns
    -------
    Path or None
        ``rank-R.json`` in the folder, where R is the rank in MPI.COMM_WORLD. None if nothing is recorded
        (``PYNCCLX_RECORD=0``), or if the file cannot be written.

    Examples
    --------
    >>> comm = pyncclx.Communicator(MPI.COMM_SELF)
    >>> pyncclx.dump(to="/tmp/pyncclx-example").name
    'rank-0.json'
    """
    return write(RING.get(), reason, Path(to) if to is not None else folder())


def write(ring: Ring | None, reason: str, to: Path) -> Path | None:
    """Write the dump in one step; return its path, or None if it cannot be written."""
    if ring is None:
        return None
    record = _record(ring, reason)
    path = to / f"rank-{ring.facts['rank']}.json"
    part = path.with_suffix(f".{os.getpid()}.part")
    with _writing:
        try:
            if to.parent == _of_all_jobs():
                folders.own(to.parent)
            to.mkdir(mode=0o700, parents=True, exist_ok=True)
            part.write_text(json.dumps(record))
            part.replace(path)
        except OSError as error:
            note(logging.WARNING, f"what this rank did cannot be written to {path}: {error}; set {settings.DUMP.name}")
            return None
    return path


def _record(ring: Ring, reason: str) -> dict[str, Any]:
    reading = Reading(bytes(ring.memory))
    numbers = {calls.reference: calls.last for calls in list(CALLS) if calls.reference}
    return {
        "format": FORMAT,
        "reason": reason,
        "job": folders.job(),
        "dumped_ns": time.time_ns(),
        **reading.record(*numbers),
        "failures": ring.failures[-_FAILURES_KEPT:],
        "stacks": stacks(),
        "progress": _progress(),
        "numbers": numbers,
        "started": reading.header.started,
        "file": str(ring.path) if ring.path is not None else None,
    }


def _progress() -> dict[int, dict[str, Any]]:
    """Return each communicator's kernel progress, by its reference in entries."""
    found = {}
    for each, calls in list(PROGRESSING.items()):
        # The device may no longer answer.
        with suppress(Exception):
            found[calls.reference] = each.progress() | {"skipped": calls.skipped}
    return found


def stacks() -> list[dict[str, Any]]:
    """Return the present line and frames of each thread, the innermost frame last."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    found = []
    for number, frame in sys._current_frames().items():
        frames = traceback.extract_stack(frame)[-_LONGEST_STACK:]
        lines, site = list(map(line, frames)), innermost(frames)
        found.append(
            {
                "thread": names.get(number, str(number)),
                "main": number == threading.main_thread().ident,
                "site": site,
                # True if the thread is in the library, or in a function that the library called.
                "inside": bool(lines) and lines[-1] != site,
                "frames": lines,
            }
        )
    return sorted(found, key=lambda each: not each["main"])
