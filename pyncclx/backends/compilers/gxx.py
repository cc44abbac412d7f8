"""Compile kernels for the emulator with g++ into shared libraries; a cache on disk."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from ...errors import NotSupported
from ...system import paths
from . import cache

#: Hidden visibility: each library has its own emulator, whichever other libraries the process has loaded.
#: No contraction: a multiplication and an addition are rounded twice on every CPU.
FLAGS = [
    *("-std=c++17", "-O1", "-DPYNCCLX_HOST", "-shared", "-fPIC", "-pthread"),
    *("-fvisibility=hidden", "-fno-strict-aliasing", "-ffp-contract=off"),
]


def compile_cached(source: Path, instantiations: Sequence[str]) -> Path:
    """Return the path of a library with these kernels; compile it unless the cache contains it."""
    library = cache.path_of(f"{source.stem}-{_key(source, instantiations)}.so")
    if not library.exists():
        with _locked(library.with_suffix(".lock")):
            if not library.exists():
                _build(source, instantiations, library)
    return library


@functools.cache
def compiler() -> tuple[str, str]:
    """Return the path of g++ and its version line."""
    path = shutil.which("g++")
    if path is None:
        raise NotSupported(
            "the emulator (PYNCCLX_DEVICE=host) compiles its kernels with g++, which is not on PATH: "
            "apt-get install g++ (Debian, Ubuntu) or dnf install gcc-c++ (Fedora, RHEL)"
        )
    version = subprocess.run([path, "--version"], check=True, capture_output=True, text=True).stdout
    return path, version.splitlines()[0]


def _key(source: Path, instantiations: Sequence[str]) -> str:
    """Return a digest of all that decides the content of the library."""
    sources = paths.sources_digest(str(source)), paths.sources_digest("protocol/signal.cuh")
    parts = [*sources, source.name, *FLAGS, *compiler(), *instantiations]
    digest = hashlib.sha256("\0".join(parts).encode())
    digest.update(source.read_bytes())
    return digest.hexdigest()[:32]


def _wrapper(source: Path, instantiations: Sequence[str]) -> str:
    """Return the translation unit that exports each kernel under a plain name, and a list of them."""
    entries = [f"EMULATE(kernel_{i}, {name})" for i, name in enumerate(instantiations)]
    names = "\\n".join(instantiations)
    exported = f'EMULATOR_EXPORT const char* pyncclx_kernels;\nconst char* pyncclx_kernels = "{names}";'
    return "\n".join(['#include "protocol/signal.cuh"', f'#include "{source}"', *entries, exported, ""])


def _build(source: Path, instantiations: Sequence[str], library: Path) -> None:
    """Compile in a temporary folder, then move the library into place in one step."""
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        unit, made = Path(folder, library.stem + ".cpp"), Path(folder, library.name)
        unit.write_text(_wrapper(source, instantiations))
        command = [compiler()[0], *FLAGS, "-I", str(paths.CUDA_DIR), str(unit), "-o", str(made)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"g++ cannot compile {source}:\n{done.stderr}\ncommand: {' '.join(command)}")
        os.replace(made, library)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Make processes wait until the one that compiles is done."""
    with open(path, "w") as file:
        # On a file system without locks all compile, and the last library stays.
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
