"""Folders of flight recorders: one per job, in memory that outlives processes.

    /dev/shm/pyncclx-UID/JOB/RANK-PID.ring

The last process of a job removes the job's folder. After an unclean end or a failure the folder stays. A later job
removes it when it is more than a day old, or when there are many folders.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from mpi_bootstrap.processes import Process, process

from ..system import settings
from . import layout
from .layout import Reading, header_of

SUFFIX = ".ring"
KEPT_S = 24 * 3600.0
# Limit on folders of earlier jobs.
MOST_KEPT = 32


def base() -> Path:
    """Return the folder of this user's job folders; create it if missing.

    Raises
    ------
    OSError
        If it cannot be created, or other users can write to it.
    """
    shared = Path("/dev/shm")
    parent = shared if os.access(shared, os.W_OK) else Path(tempfile.gettempdir())
    return own(parent / f"pyncclx-{os.getuid()}")


def own(folder: Path) -> Path:
    """Return a folder that only this user can write to; create it if it is missing.

    Raises
    ------
    OSError
        It cannot be created, or other users can write to it.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise PermissionError(f"{folder} is not a folder that only this user can write to")
    return folder


def job() -> str:
    """Return the name of this process's job, equal for its processes on this node."""
    namespace = settings.foreign("PMIX_NAMESPACE")
    slurm = settings.foreign("SLURM_JOB_ID"), settings.foreign("SLURM_STEP_ID")
    # All ranks that a launcher starts on a node have the same parent.
    parent = os.getppid()
    started = (process(parent) or Process()).started
    name = namespace or (f"slurm-{slurm[0]}.{slurm[1]}" if all(slurm) else f"{parent}-{started}")
    return re.sub(r"[^\w.@-]", "_", name)


def is_agreed(name: str) -> bool:
    """Return whether a name from `job` is the same on all nodes of the job."""
    return re.fullmatch(r"\d+-\d+", name) is None


def jobs() -> list[Path]:
    """Return the folders of this user's jobs on this node, the newest first."""
    with suppress(OSError):
        found = [path for path in base().iterdir() if path.is_dir()]
        return sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)
    return []


def files(folder: Path) -> Iterator[Path]:
    """Yield the flight recorder files in a job's folder, one for each process."""
    return folder.glob(f"*{SUFFIX}")


def condition(pid: int, since: int) -> str:
    """Return a process's state letter in /proc, such as R, S or T (stopped).

    It is "" if the process has ended, even if another process has its id now.
    """
    found = process(pid)
    return "" if found is None or found.has_ended or found.started != since else found.state


def leave(path: Path) -> None:
    """Remove the folder that a file is in if all processes of the job ended cleanly."""
    headers = [header_of(each) for each in files(path.parent)]
    if all(header is not None and header.state == layout.ENDED for header in headers):
        shutil.rmtree(path.parent, ignore_errors=True)


def clean(own: Path) -> None:
    """Remove folders of ended jobs: those older than KEPT_S, and all but MOST_KEPT."""
    left = [folder for folder in jobs() if folder != own and not _may_run(folder)]
    for number, folder in enumerate(left):
        with suppress(OSError):
            if number >= MOST_KEPT or time.time() - folder.stat().st_mtime > KEPT_S:
                shutil.rmtree(folder, ignore_errors=True)


def _may_run(folder: Path) -> bool:
    """Return whether a process of a job is running, or may just have started.

    A process without a header counts while its folder is young.
    """
    headers = [header_of(path) for path in files(folder)]
    if not headers or None in headers:
        with suppress(OSError):
            return time.time() - folder.stat().st_mtime < 60
    return is_running(folder)


def is_running(folder: Path) -> bool:
    """Return whether a process of a job is running."""
    headers = filter(None, map(header_of, files(folder)))
    return any(condition(header.pid, header.started) for header in headers)


def read(path: Path) -> dict[str, Any]:
    """Return the record in a file and the state of its process.

    Raises
    ------
    ValueError
        If it is no flight recorder file, or one of another version.
    """
    if header_of(path) is None:
        raise ValueError(f"{path} is no file of pyncclx's flight recorder, version {layout.VERSION}")
    reading = Reading(path.read_bytes())
    now = condition(reading.header.pid, reading.header.started)
    return reading.record() | {"condition": now, "started": reading.header.started, "file": str(path)}
