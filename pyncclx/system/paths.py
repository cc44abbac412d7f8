"""The folders of the CUDA sources and of compiled kernels."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import tempfile
from pathlib import Path

from . import settings

_PACKAGE = Path(__file__).resolve().parents[1]

#: The folder of the CUDA C++ sources: inside the package when installed, beside it in a checkout.
CUDA_DIR: Path = _PACKAGE / "cuda" if (_PACKAGE / "cuda").is_dir() else _PACKAGE.parent / "cuda"


def include_path() -> str:
    """Return the folder of ``pyncclx.cuh``, the device functions for kernels in CUDA C++.

    Returns
    -------
    str
        For a compiler's ``-I``; the header needs C++17.

    Examples
    --------
    >>> (Path(pyncclx.include_path()) / "pyncclx.cuh").exists()
    True
    """
    return str(CUDA_DIR)


def cache_directory() -> Path:
    """Return the folder for compiled kernels, creating it.

    Returns
    -------
    pathlib.Path
        ``$PYNCCLX_CACHE`` if set, else ``pyncclx`` in ``$XDG_CACHE_HOME`` or ``~/.cache``.

    Raises
    ------
    OSError
        If it cannot be created; set ``PYNCCLX_CACHE`` to a folder that can be written.
    """
    user = settings.foreign("XDG_CACHE_HOME")
    directory = settings.CACHE.get() or (Path(user) if user else Path.home() / ".cache") / "pyncclx"
    directory.mkdir(parents=True, exist_ok=True)
    return directory


@functools.cache
def sources_digest(file: str) -> str:
    """Return a digest of a source and all that it includes, so that an edit of any of them leads to new binaries.

    It is computed once per process: kernels that are compiled later belong to the same sources.

    Parameters
    ----------
    file : str
        Relative to the folder of the CUDA sources, or absolute.
    """
    digest = hashlib.sha256()
    for path in sorted(_with_includes(CUDA_DIR / file, set()), key=lambda path: path.name):
        digest.update(path.name.encode() + b"\0")
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def write(path: Path, data: bytes) -> None:
    """Write a file in one step: another process reads all of it or finds no file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    os.replace(name, path)


def _with_includes(path: Path, found: set[Path]) -> set[Path]:
    """Add a source, and what it includes in quotes, to `found`; a missing file is an error of the compiler."""
    if path not in found and path.exists():
        found.add(path)
        for name in re.findall(r'^\s*#\s*include\s+"([^"]+)"', path.read_text(), re.MULTILINE):
            beside, above = (path.parent / name).resolve(), CUDA_DIR / name
            _with_includes(beside if beside.exists() else above, found)
    return found
