"""The folder of the CUDA sources, and their digests."""

from __future__ import annotations

import functools
import hashlib
import re
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]

#: The folder of the CUDA C++ sources: inside the package when installed, beside it in a checkout.
CUDA_DIR: Path = _PACKAGE / "cuda" if (_PACKAGE / "cuda").is_dir() else _PACKAGE.parent / "cuda"


def include_path() -> str:
    """Return the folder of ``pyncclx.cuh``, the header with the device functions.

    Returns
    -------
    str
        The folder to pass to a compiler's ``-I``; the header needs C++17.

    Examples
    --------
    >>> (Path(pyncclx.include_path()) / "pyncclx.cuh").exists()
    True
    """
    return str(CUDA_DIR)


@functools.cache
def sources_digest(file: str) -> str:
    """Return a digest of a source and all that it includes.

    It is part of the binaries' cache key. It is computed once per process, so all kernels of a process belong to the
    same sources.

    Parameters
    ----------
    file : str
        Path relative to the folder of the CUDA sources, or absolute.
    """
    digest = hashlib.sha256()
    for path in sorted(_with_includes(CUDA_DIR / file, set()), key=lambda path: path.name):
        digest.update(path.name.encode() + b"\0")
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _with_includes(path: Path, found: set[Path]) -> set[Path]:
    """Add a source and its quoted includes to `found`; return `found`.

    A missing file is ignored here, because the compiler reports it.
    """
    if path not in found and path.exists():
        found.add(path)
        for name in re.findall(r'^\s*#\s*include\s+"([^"]+)"', path.read_text(), re.MULTILINE):
            beside, above = (path.parent / name).resolve(), CUDA_DIR / name
            _with_includes(beside if beside.exists() else above, found)
    return found
