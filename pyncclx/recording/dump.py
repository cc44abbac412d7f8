"""What a rank writes for others to read after a failure: its record, its stacks, what its kernels have got to."""

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
from .reading import Reading
from .ring import RING, Ring
from .sites import is_inside

FORMAT = 1
_LONGEST_STACK = 40  # frames
_FAILURES_KEPT = 20



class Progressing(Protocol):
    """The device side of a communicator, which has the progress of its kernels."""

    def progress(self) -> dict[str, Any]:
        """Return it, without waiting for the device."""


#: What records the calls of each.
PROGRESSING: weakref.WeakKeyDictionary[Progressing, Calls] = weakref.WeakKeyDictionary()
_writing = lock()


def folder() -> Path:
    """Return the folder of this job's dumps: PYNCCLX_DUMP, or one in the folder for temporary files."""
    return settings.DUMP.get() or _of_all_jobs() / folders.job()


def _of_all_jobs() -> Path:
    return Path(tempfile.gettempdir()) / f"pyncclx-dump-{os.getuid()}"


def dump(reason: str = "asked for", *, to: str | os.PathLike[str] | None = None) -> Path | None:
    """Write what this rank's last calls were, and where it is, to a file: not collective, and at any time.

    ``python -m pyncclx analyze`` reads the files of all ranks. pyncclx writes them by itself after a timeout, a failed
    rank, a mismatch or an exception that nothing catches, and on SIGUSR1.

    Parameters
    ----------
    reason : str
    to : path, optional
        The folder; default: that of PYNCCLX_DUMP, or one in the folder for temporary files.

    Returns
    -------
    Path or None
        ``rank-R.json`` in the folder, R being the rank in MPI.COMM_WORLD. None if nothing is recorded
        (``PYNCCLX_RECORD=0``), or the file cannot be written.

    Examples
    --------
    >>> comm = pyncclx.Communicator(MPI.COMM_SELF)
    >>> pyncclx.dump(to="/tmp/pyncclx-example").name
    'rank-0.json'
    """
    return write(RING.get(), reason, Path(to) if to is not None else folder())


def write(ring: Ring | None, reason: str, to: Path) -> Path | None:
    """Write the file whole, or not at all."""
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
    """What kernels have got to, by the references of communicators in entries."""
    found = {}
    for each, calls in list(PROGRESSING.items()):
        with suppress(Exception):  # the device may be lost
            found[calls.reference] = each.progress() | {"skipped": calls.skipped}
    return found


def stacks() -> list[dict[str, Any]]:
    """Return where each thread is: the line of the program that it is in, and its frames, the innermost last."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    found = []
    for number, frame in sys._current_frames().items():
        summary = traceback.extract_stack(frame)[-_LONGEST_STACK:]
        lines = [f"{each.filename}:{each.lineno} in {each.name}" for each in summary]
        outside = [line for line, each in zip(lines, summary, strict=True) if not is_inside(each.filename)]
        site = outside[-1] if outside else ""
        found.append(
            {
                "thread": names.get(number, str(number)),
                "main": number == threading.main_thread().ident,
                "site": site,
                "inside": bool(lines) and lines[-1] != site,  # it is in the library, or in what that has called
                "frames": lines,
            }
        )
    return sorted(found, key=lambda each: not each["main"])
