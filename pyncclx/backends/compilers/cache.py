"""Compiled code on disk: a file's name has a digest of all that decides what the file contains."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from ...system.paths import cache_directory, write


def file_name(stem: str, key: object, suffix: str) -> str:
    """Return the name of the file for a key whose `repr` contains all that decides the content."""
    return f"{stem}-{hashlib.sha256(repr(key).encode()).hexdigest()[:24]}{suffix}"


def path_of(name: str) -> Path:
    """Return the path of a file in the cache, which need not exist."""
    return cache_directory() / name


def read_or_make(name: str, make: Callable[[], bytes]) -> bytes:
    """Return the content of a file in the cache; if it does not exist, write there what `make` returns."""
    path = path_of(name)
    if not path.exists():
        write(path, make())
    return path.read_bytes()
