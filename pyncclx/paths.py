"""Where the CUDA sources lie, and where compiled kernels are kept."""

from __future__ import annotations

import functools
import hashlib
import os
from pathlib import Path

_HERE = Path(__file__).resolve().parent

#: The folder of the CUDA C++ sources: inside the package when installed, beside it in a checkout.
CUDA_DIR: Path = _HERE / "cuda" if (_HERE / "cuda").is_dir() else _HERE.parent / "cuda"


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
    chosen = os.environ.get("PYNCCLX_CACHE")
    user = os.environ.get("XDG_CACHE_HOME")
    directory = Path(chosen) if chosen else (Path(user) if user else Path.home() / ".cache") / "pyncclx"
    directory.mkdir(parents=True, exist_ok=True)
    return directory


@functools.cache
def sources_digest() -> str:
    """Return a digest over every CUDA source, headers included, so that an edit of any leads to new binaries.

    Read once per process: kernels compiled later in it belong to the same sources.
    """
    digest = hashlib.sha256()
    for path in sorted(p for p in CUDA_DIR.rglob("*") if p.suffix in {".cu", ".cuh", ".h"}):
        digest.update(path.relative_to(CUDA_DIR).as_posix().encode() + b"\0")
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()
