"""Compiled code on disk: a file's name has a digest of all that decides its content, and its end one of the content.

Processes that need the same file wait, asleep, for the one that makes it. What a process writes has its own name until
it is complete; if the process has died before, the next one removes it, as it does locks that no process holds.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib
import os
import shutil
import socket
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ...system import cache_folders
from ...system.notes import warn_once
from ...system.process import cached

try:
    lzma: Any = importlib.import_module("lzma")
except ImportError:  # a Python that was built without it
    lzma = None

_XZ = b"\xfd7zXZ\0"  # begins what lzma has compressed
_MAGIC = b"pyncclx1"  # at the end of each file, behind the digest of its content
_DIGEST_NBYTES = hashlib.sha256().digest_size
_UNFINISHED = ".unfinished"


class Entry(NamedTuple):
    """A file of the cache."""

    path: Path | None  # None if it could not be written
    content: bytes


def file_name(stem: str, key: object, suffix: str) -> str:
    """Return the name of the file for a key whose `repr` contains all that decides the content."""
    return f"{stem}-{hashlib.sha256(repr(key).encode()).hexdigest()[:24]}{suffix}"


def read_or_make(name: str, make: Callable[[], bytes]) -> bytes:
    """Return what a file of the cache has, compressed; if there is none, write there what `make` returns."""
    return _decompressed(find_or_make(name, lambda: _compressed(make())).content)


def keep_beside(name: str, content: bytes) -> bool:
    """Write a file that `read_or_make` reads, though another process may be making it; return whether there is room."""
    return _keep(name, _compressed(content)) is not None


def _compressed(content: bytes) -> bytes:
    """Compress what is built for others, which is carried about, by a third more, though that takes longer."""
    return lzma.compress(content) if lzma is not None and cache_folders.is_for_others() else zlib.compress(content, 9)


def _decompressed(data: bytes) -> bytes:
    return lzma.decompress(data) if data.startswith(_XZ) else zlib.decompress(data)


def find_or_make(name: str, make: Callable[[], bytes]) -> Entry:
    """Return a file of the cache; if there is none, one with what `make` returns, which one process at a time does."""
    found = find(name)
    if found is None:
        with _locked(name):
            found = find(name)
            if found is None:
                content = make()
                found = Entry(_keep(name, content), content)
    return found


def find(name: str) -> Entry | None:
    """Return the first file of the cache with this name that is whole."""
    for folder in cache_folders.cache_folders():
        try:
            data = (folder / name).read_bytes()
        except OSError:
            continue
        content = _checked(data)
        if content is None:
            warn_once(f"{folder / name} is damaged, and made anew")
        elif lzma is not None or not content.startswith(_XZ):
            return Entry(folder / name, content)
    return None


def _sealed(content: bytes) -> bytes:
    return content + hashlib.sha256(content).digest() + _MAGIC


def _checked(data: bytes) -> bytes | None:
    """Return the content of a file; None if it is not what was written."""
    content = data[: -_DIGEST_NBYTES - len(_MAGIC)]
    return content if data == _sealed(content) else None


def _keep(name: str, content: bytes) -> Path | None:
    """Write a file of the cache; return its path, None if there is no room for it anywhere."""
    for folder in dict.fromkeys((cache_folders.cache_directory(), cache_folders.private_directory())):
        try:
            write(folder / name, _sealed(content))
            return folder / name
        except OSError as error:
            warn_once(f"compiled kernels cannot be kept in {folder} ({error.strerror})")
    return None


def write(path: Path, data: bytes) -> None:
    """Write a file in one step: another process reads all of it or finds no file."""
    with unfinished(path.parent) as folder:
        temporary = folder / path.name
        temporary.write_bytes(data)
        temporary.chmod(0o644)
        os.replace(temporary, path)


@contextlib.contextmanager
def unfinished(folder: Path) -> Iterator[Path]:
    """Make a folder in `folder` for files that are not complete, and remove it."""
    _remove_unfinished_of_the_dead(folder)
    _remove_locks_of_the_dead(folder)
    made = tempfile.mkdtemp(prefix=f"{_UNFINISHED}-{_place()}-{os.getpid()}-", dir=folder)
    try:
        yield Path(made)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _remove_unfinished_of_the_dead(folder: Path) -> None:
    for path in folder.glob(f"{_UNFINISHED}-{_place()}-*"):
        process = int(path.name.split("-")[-2])
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            shutil.rmtree(path, ignore_errors=True)
        except PermissionError:
            pass  # another user's process has the number now


def _remove_locks_of_the_dead(folder: Path) -> None:
    for path in folder.glob(".*.lock"):
        with contextlib.suppress(OSError), open(path, "r+") as file:  # as where a process holds the lock
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)


@cached
def _place() -> str:
    """Return a name for where a number of a process is valid: a machine, and a PID namespace of it."""
    try:
        namespace = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        namespace = 0
    return hashlib.sha256(f"{socket.gethostname()} {namespace}".encode()).hexdigest()[:8]


@contextlib.contextmanager
def _locked(name: str) -> Iterator[None]:
    """Make processes wait until the one that makes a file is done."""
    path = cache_folders.cache_directory() / f".{name}.lock"
    with contextlib.ExitStack() as stack:
        # On a file system without locks, or without room, all make it, and the last file stays.
        with contextlib.suppress(OSError):
            file = stack.enter_context(open(path, "w"))
            fcntl.flock(file, fcntl.LOCK_EX)
            stack.callback(path.unlink, missing_ok=True)
        yield
