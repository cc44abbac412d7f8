"""Compile kernels for the emulator with g++ into cached shared libraries."""

from __future__ import annotations

import errno
import functools
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from ...errors import NotSupported
from ...system import paths, settings
from ...system.cache_folders import cache_directory
from . import cache

#: Hidden visibility gives each library its own emulator, whatever other libraries the process has loaded.
#: Without contraction, a multiplication and an addition are rounded twice on every CPU.
FLAGS = [
    *("-std=c++17", "-O1", "-DPYNCCLX_HOST", "-shared", "-fPIC", "-pthread"),
    *("-fvisibility=hidden", "-fno-strict-aliasing", "-ffp-contract=off"),
]

_SUPERVISOR = Path(__file__).with_name("supervisor.py")
_FULL = os.strerror(errno.ENOSPC)


def compile_cached(source: Path, instantiations: Sequence[str], within: Sequence[str] = ()) -> Path:
    """Return the path of a library with these kernels; compile it unless it is cached.

    If this library is not cached, but one with the kernels of `within` is, return that one.

    Raises
    ------
    RuntimeError
        With the compiler's messages.
    OSError
        If the library cannot be written anywhere.
    """
    name = _file_name(source, instantiations)
    found = cache.find(name) or (cache.find(_file_name(source, within)) if within else None)
    path = (found or cache.find_or_make(name, lambda: _compile(source, instantiations))).path
    if path is None:
        raise OSError(f"{name} cannot be written; set PYNCCLX_CACHE to a folder with room for it")
    return path


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


def _file_name(source: Path, instantiations: Sequence[str]) -> str:
    """Return a library's name in the cache, with a digest of everything it depends on."""
    sources = paths.sources_digest(str(source)), paths.sources_digest("protocol/signal.cuh")
    key = (*sources, source.name, FLAGS, compiler()[1], platform.machine(), tuple(instantiations))
    return cache.file_name(source.stem, key, ".so")


def _wrapper(source: Path, instantiations: Sequence[str]) -> str:
    """Return C++ source that exports each kernel under a plain name, and their list."""
    entries = [f"EMULATE(kernel_{i}, {name})" for i, name in enumerate(instantiations)]
    names = "\\n".join(instantiations)
    exported = f'EMULATOR_EXPORT const char* pyncclx_kernels;\nconst char* pyncclx_kernels = "{names}";'
    return "\n".join(['#include "protocol/signal.cuh"', f'#include "{source}"', *entries, exported, ""])


def _compile(source: Path, instantiations: Sequence[str]) -> bytes:
    """Compile a library in a temporary folder, and return its bytes."""
    with cache.unfinished(cache_directory()) as folder:
        unit, library = folder / "kernels.cpp", folder / "kernels.so"
        unit.write_text(_wrapper(source, instantiations))
        command = [compiler()[0], *FLAGS, "-I", str(paths.CUDA_DIR), str(unit), "-o", str(library)]
        code, messages = _run(command, folder)
        if _FULL in messages:
            raise RuntimeError(f"g++ cannot write to {folder.parent}: {_FULL}; set PYNCCLX_CACHE to a folder with room")
        if code != 0:
            raise RuntimeError(f"g++ cannot compile {source}:\n{messages}\ncommand: {' '.join(command)}")
        return library.read_bytes()


def _run(command: Sequence[str], folder: Path) -> tuple[int, str]:
    """Run a compiler; kill it if this process dies. Return exit code and messages.

    Its temporary files are in `folder`.
    """
    supervised = [sys.executable, "-I", "-S", str(_SUPERVISOR), str(folder), *command]
    environment = {**settings.environment(), "TMPDIR": str(folder), "LC_ALL": "C"}
    # The system closes `held_open` when this process ends, and the supervisor sees the end of its input.
    end, held_open = os.pipe()
    try:
        run = subprocess.run(
            supervised, stdin=end, capture_output=True, text=True, check=False, env=environment, errors="replace"
        )
    finally:
        os.close(end)
        os.close(held_open)
    return run.returncode, run.stderr
