"""Folders of compiled kernels: some are only read, one is written by this user."""

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

#: Folder of kernels that were compiled when the package was installed.
READY_DIR = Path(__file__).resolve().parents[1] / "ready"

_output: list[Path] = held([])  # empty, or the one folder that `use` has set


def use(folder: Path) -> None:
    """Use only this folder in this process; other users may read its kernels."""
    folder.mkdir(parents=True, exist_ok=True)
    _output[:] = [folder]


def is_for_others() -> bool:
    """Return whether kernels are compiled for other users: `use` has set a folder."""
    return bool(_output)


def cache_folders() -> list[Path]:
    """Return the folders to search for compiled kernels, in order; some may not exist."""
    if _output:
        return list(_output)
    *shared, own = settings.CACHE.get() or (_default(),)
    read = [folder for folder in (*shared, own) if _is_trusted(folder, shared=folder is not own)]
    ready = [READY_DIR] if settings.READY.get() else []
    return list(dict.fromkeys([*ready, *read, cache_directory()]))


def cache_directory() -> Path:
    """Return the folder for compiled kernels; create it if necessary.

    Returns
    -------
    pathlib.Path
        The last folder of ``$PYNCCLX_CACHE`` if set, else ``pyncclx`` in ``$XDG_CACHE_HOME`` or ``~/.cache``. If this
        user cannot write to it, or another user can, it is a private temporary folder, with a warning.
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
    """Return a temporary folder that no other user can write to.

    If the folder with the usual name cannot be used, for example because it belongs to another user, this is a new
    folder that is removed at exit.
    """
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
    """Create a folder if needed; return why kernels cannot be kept there, or None."""
    try:
        # On a read-only file system mkdir fails even if the folder exists.
        if not folder.is_dir():
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
    """Return whether kernels of a folder may run.

    They may if the user has named the folder as shared and not all users can write to it, or if this user owns the
    folder and no one else can write to it.
    """
    try:
        status = folder.stat()
    except OSError:
        return False
    if shared and status.st_mode & stat.S_IWOTH:
        warn_once(f"{folder} can be written by all users: the kernels there are not used")
        return False
    return shared or (status.st_uid == os.geteuid() and not _others_write(status))


def _others_write(status: os.stat_result) -> bool:
    """Return whether other users can write to a folder.

    Many systems give each user a group of the same name; that group does not count as others.
    """
    if status.st_mode & stat.S_IWOTH:
        return True
    if not status.st_mode & stat.S_IWGRP:
        return False
    try:
        user, group = pwd.getpwuid(status.st_uid).pw_name, grp.getgrgid(status.st_gid)
    except KeyError:
        return True
    return group.gr_name != user or not {user}.issuperset(group.gr_mem)
