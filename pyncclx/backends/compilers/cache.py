"""Cache of compiled code on disk.

A file's name contains a digest of everything that its content depends on; the file ends with a digest of its content.
Processes that need the same file sleep until one of them has made it. That process writes a temporary file, and renames
it when it is complete. The next process that writes removes temporary files of dead processes, and lock files that no
process holds.
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
# Some Pythons are built without lzma.
except ImportError:
    lzma = None

# Magic number of xz files.
_XZ = b"\xfd7zXZ\0"
# End of each file, after the digest of its content.
_MAGIC = b"pyncclx1"
_DIGEST_NBYTES = hashlib.sha256().digest_size
_UNFINISHED = ".unfinished"


class Entry(NamedTuple):
    """File of the cache."""

    path: Path | None  # None if it could not be written
    content: bytes


def file_name(stem: str, key: object, suffix: str) -> str:
    """Return a file name for a key whose `repr` contains all that decides the content."""
    return f"{stem}-{hashlib.sha256(repr(key).encode()).hexdigest()[:24]}{suffix}"


def read_or_make(name: str, make: Callable[[], bytes]) -> bytes:
    """Return the content of a compressed file of the cache; if it is missing, make it."""
    return _decompressed(find_or_make(name, lambda: _compressed(make())).content)


def keep_beside(name: str, content: bytes) -> bool:
    """Write a file for `read_or_make` without a lock; return whether it was written.

    Another process may be making the same file.
    """
    return _keep(name, _compressed(content)) is not None


def _compressed(content: bytes) -> bytes:
    """Compress content for the cache.

    Code built for other machines is copied to them, so it is compressed by lzma: slower, but a third smaller.
    """
    return lzma.compress(content) if lzma is not None and cache_folders.is_for_others() else zlib.compress(content, 9)


def _decompressed(data: bytes) -> bytes:
    return lzma.decompress(data) if data.startswith(_XZ) else zlib.decompress(data)


def find_or_make(name: str, make: Callable[[], bytes]) -> Entry:
    """Return a file of the cache; if it is missing, one process makes it by `make`."""
    found = find(name)
    if found is None:
        with _locked(name):
            found = find(name)
            if found is None:
                content = make()
                found = Entry(_keep(name, content), content)
    return found


def find(name: str) -> Entry | None:
    """Return the first undamaged cache file with this name; None if there is none."""
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
    """Return the content of a file, or None if the file is damaged."""
    content = data[: -_DIGEST_NBYTES - len(_MAGIC)]
    return content if data == _sealed(content) else None


def _keep(name: str, content: bytes) -> Path | None:
    """Write a file of the cache; return its path, or None if no folder can hold it."""
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
    """Create a folder for incomplete files in `folder`; remove it on exit."""
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
            # The process exists, but belongs to another user: the process id has been reused.
            pass


def _remove_locks_of_the_dead(folder: Path) -> None:
    for path in folder.glob(".*.lock"):
        # Opening or locking fails where another process holds the lock.
        with contextlib.suppress(OSError), open(path, "r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)


@cached
def _place() -> str:
    """Return a name for the scope of process ids: this machine and its PID namespace."""
    try:
        namespace = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        namespace = 0
    return hashlib.sha256(f"{socket.gethostname()} {namespace}".encode()).hexdigest()[:8]


@contextlib.contextmanager
def _locked(name: str) -> Iterator[None]:
    """Lock a file's name, so that other processes wait until the caller has made it."""
    path = cache_folders.cache_directory() / f".{name}.lock"
    with contextlib.ExitStack() as stack:
        # Without locks or disk space, every process makes the file, and the last one stays.
        with contextlib.suppress(OSError):
            file = stack.enter_context(open(path, "w"))
            fcntl.flock(file, fcntl.LOCK_EX)
            stack.callback(path.unlink, missing_ok=True)
        yield
