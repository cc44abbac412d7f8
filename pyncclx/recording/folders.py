"""Where the files of flight recorders are: a folder for each job, in memory that its processes leave behind.

    /dev/shm/pyncclx-UID/JOB/RANK-PID.ring

A job's folder goes when its last process ends. Those of jobs that did not end so, or in which something failed, go when
a later one begins, after a day, or when there are many.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import struct
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ..system import settings
from . import layout

SUFFIX = ".ring"
KEPT_S = 24 * 3600.0
MOST_KEPT = 32  # jobs that left something


def base() -> Path:
    """Return the folder of this user's jobs, made if it is not there.

    Raises
    ------
    OSError
        If it cannot be made, or is not this user's alone.
    """
    shared = Path("/dev/shm")
    parent = shared if os.access(shared, os.W_OK) else Path(tempfile.gettempdir())
    return own(parent / f"pyncclx-{os.getuid()}")


def own(folder: Path) -> Path:
    """Return a folder in one that all users write to, made if it is not there; raise as `base`."""
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise PermissionError(f"{folder} is not a folder that only this user can write to")
    return folder


def job() -> str:
    """Return the name of the job that this process is part of: the same for all its processes on this node."""
    namespace = settings.foreign("PMIX_NAMESPACE")
    slurm = settings.foreign("SLURM_JOB_ID"), settings.foreign("SLURM_STEP_ID")
    parent = os.getppid()  # of the ranks that a launcher starts on a node
    name = namespace or (f"slurm-{slurm[0]}.{slurm[1]}" if all(slurm) else f"{parent}-{started(parent)}")
    return re.sub(r"[^\w.@-]", "_", name)


def is_agreed(name: str) -> bool:
    """Return whether the name of a job is the same on all of its nodes."""
    return re.fullmatch(r"\d+-\d+", name) is None


def jobs() -> list[Path]:
    """Return the folders of all jobs of this user on this node that have left anything, the newest first."""
    with suppress(OSError):
        found = [path for path in base().iterdir() if path.is_dir()]
        return sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)
    return []


def files(folder: Path) -> Iterator[Path]:
    """Yield the files of a job's processes."""
    return folder.glob(f"*{SUFFIX}")


def started(pid: int) -> int:
    """Return when a process was started, in ticks; 0 if there is none. With its number that names it for ever."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return int(text.rpartition(")")[2].split()[19])


def condition(pid: int, since: int) -> str:
    """Return the letter of /proc for a process: R, S, T (stopped), …; "" if it is gone, or the number is another's."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return fields[0] if int(fields[19]) == since and fields[0] not in "ZX" else ""


def header_of(path: Path) -> layout.Header | None:
    """Return the header of a file; None if it is no flight recorder's, or not there any more."""
    try:
        with path.open("rb") as file:
            header = layout.Header(*layout.HEADER.unpack(file.read(layout.HEADER.size)))
    except (OSError, struct.error):
        return None
    return header if header.magic == layout.MAGIC and header.version == layout.VERSION else None


def leave(path: Path) -> None:
    """Remove the folder of a file if all of the job's processes have ended as they should."""
    headers = [header_of(each) for each in files(path.parent)]
    if all(header is not None and header.state == layout.ENDED for header in headers):
        shutil.rmtree(path.parent, ignore_errors=True)


def clean(own: Path) -> None:
    """Remove what earlier jobs have left: all but the last few, and what is older than a day."""
    left = [folder for folder in jobs() if folder != own and not _is_running(folder)]
    for number, folder in enumerate(left):
        with suppress(OSError):
            if number >= MOST_KEPT or time.time() - folder.stat().st_mtime > KEPT_S:
                shutil.rmtree(folder, ignore_errors=True)


def _is_running(folder: Path) -> bool:
    """Whether a process of a job is there; one that has not written its header counts while it is young."""
    headers = [header_of(path) for path in files(folder)]
    if not headers or None in headers:
        with suppress(OSError):
            return time.time() - folder.stat().st_mtime < 60
    return any(header is not None and condition(header.pid, header.started) for header in headers)
