"""The folders of compiled kernels: some are only read, and one is the user's own, which no other user can write."""

from __future__ import annotations

import atexit
import grp
import os
import pwd
import shutil
import stat
import tempfile
from pathlib import Path

from . import settings
from .notes import warn_once
from .process import PerProcess, held

#: Kernels that were compiled when the package was installed.
READY_DIR = Path(__file__).resolve().parents[1] / "ready"

_output: list[Path] = held([])  # none, or the one folder that `use` has set


def use(folder: Path) -> None:
    """Let this folder be the only one for this process; other users may read what it keeps there."""
    folder.mkdir(parents=True, exist_ok=True)
    _output[:] = [folder]


def is_for_others() -> bool:
    """Return whether `use` has set a folder."""
    return bool(_output)


def cache_folders() -> list[Path]:
    """Return all folders in which compiled kernels are searched, in this order; some need not exist."""
    if _output:
        return list(_output)
    *shared, own = settings.CACHE.get() or (_default(),)
    read = [folder for folder in (*shared, own) if _is_trusted(folder, shared=folder is not own)]
    ready = [READY_DIR] if settings.READY.get() else []
    return list(dict.fromkeys([*ready, *read, cache_directory()]))


def cache_directory() -> Path:
    """Return the folder that compiled kernels are kept in, creating it.

    Returns
    -------
    pathlib.Path
        The last folder of ``$PYNCCLX_CACHE`` if set, else ``pyncclx`` in ``$XDG_CACHE_HOME`` or ``~/.cache``. If it
        cannot be written, or another user can, a private folder for temporary files, and a warning.
    """
    if _output:
        return _output[0]
    own = (settings.CACHE.get() or (_default(),))[-1]
    problem = _problem(own)
    if problem is None:
        return own
    private = private_directory()
    warn_once(f"{own} {problem}: compiled kernels are kept in {private}; set PYNCCLX_CACHE to a folder of your own")
    return private


def private_directory() -> Path:
    """Return a folder for temporary files that no other user can write; a new one if another user has its name."""
    folder = Path(tempfile.gettempdir()) / f"pyncclx-{os.geteuid()}"
    return folder if not folder.is_symlink() and _problem(folder) is None else _UNNAMED.get()


def _unnamed() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="pyncclx-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


_UNNAMED = PerProcess(_unnamed)


def _default() -> Path:
    user = settings.foreign("XDG_CACHE_HOME")
    return (Path(user) if user else Path.home() / ".cache") / "pyncclx"


def _problem(folder: Path) -> str | None:
    """Create a folder unless it exists; return why kernels cannot be kept there, None if they can."""
    try:
        if not folder.is_dir():  # mkdir would refuse a folder of a file system that is only read
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError as error:
        return f"cannot be created ({error.strerror})"
    if status.st_uid != os.geteuid():
        return "belongs to another user"
    if _others_write(status):
        return "can be written by other users"
    return None if os.access(folder, os.W_OK | os.X_OK) else "cannot be written"


def _is_trusted(folder: Path, *, shared: bool) -> bool:
    """Whether the kernels of a folder may run: the user has named it as shared, or owns it, and no one else writes."""
    try:
        status = folder.stat()
    except OSError:
        return False
    if shared and status.st_mode & stat.S_IWOTH:
        warn_once(f"{folder} can be written by all users: the kernels there are not used")
        return False
    return shared or (status.st_uid == os.geteuid() and not _others_write(status))


def _others_write(status: os.stat_result) -> bool:
    """Whether other users can write a folder. The group of a user's own name, which many systems make, is no other."""
    if status.st_mode & stat.S_IWOTH:
        return True
    if not status.st_mode & stat.S_IWGRP:
        return False
    try:
        user, group = pwd.getpwuid(status.st_uid).pw_name, grp.getgrgid(status.st_gid)
    except KeyError:
        return True
    return group.gr_name != user or not {user}.issuperset(group.gr_mem)
