"""Facts of a process, such as its rank and settings, and lines of the program."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from traceback import FrameSummary
from types import CodeType, FrameType
from typing import Any

from mpi4py import MPI

from ..system import settings
from ..system.process import cached, held

_MODULES = ("pyncclx", "mpi4py", "numpy", "cupy", "torch", "jax")
# Settings that may differ between ranks.
_OWN = (settings.RECORD, settings.DUMP, settings.NODE, settings.VERBOSE, settings.CACHE)

_PACKAGES = tuple(f"{Path(__file__).resolve().parents[2] / name}/" for name in ("pyncclx", "mpi_bootstrap"))
# Whether code belongs to the library or is called by it.
_inside: dict[CodeType, bool] = held({})


@cached
def is_on() -> bool:
    """Return whether this process records its calls."""
    return settings.RECORD.get() > 0


def records_calls() -> bool:
    """Return whether calls are recorded now.

    They are recorded only if MPI.COMM_WORLD exists, whose ranks name the processes. Programs with MPI sessions have
    none.
    """
    return is_on() and MPI.Is_initialized() and not MPI.Is_finalized()


@cached
def records_all() -> bool:
    """Return whether calls with host arrays are recorded too."""
    return settings.RECORD.get() > 1


def place() -> tuple[int, int]:
    """Return rank and size of MPI.COMM_WORLD; 0 and 1 in a program with MPI sessions."""
    return (MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size) if MPI.Is_initialized() else (0, 1)


def facts_of_process() -> dict[str, Any]:
    """Return the facts of this process."""
    (rank, size), (vendor, numbers) = place(), MPI.get_vendor()
    environment = settings.environment()
    alike = [each.name for each in settings.SETTINGS if each.is_set and each not in _OWN]
    loaded = {name: getattr(sys.modules.get(name), "__version__", None) for name in _MODULES}
    return {
        "rank": rank,
        "size": size,
        "host": MPI.Get_processor_name(),
        "pid": os.getpid(),
        "program": " ".join(sys.argv) or sys.executable,
        "folder": os.getcwd(),
        "versions": {
            "python": platform.python_version(),
            vendor: ".".join(map(str, numbers)),
            **{name: str(version) for name, version in loaded.items() if version},
        },
        "settings": {name: environment[name] for name in alike},
    }


def site(frame: FrameType | None) -> str:
    """Return the line of the first caller outside the library, or "".

    The search begins at `frame`. The line has the form ``file:line in function``.
    """
    while frame is not None:
        code = frame.f_code
        inside = _inside.get(code)
        if inside is None:
            inside = _inside[code] = is_inside(code.co_filename)
        if not inside:
            return f"{code.co_filename}:{frame.f_lineno} in {code.co_name}"
        frame = frame.f_back
    return ""


def calling_site() -> str:
    """Return the program's line that is calling the library."""
    return site(sys._getframe(1))


def is_inside(name: str) -> bool:
    """Return whether `site` skips the code of a file with this name.

    It skips the library, and modules of Python that the library calls through, such as contextlib.
    """
    return name.startswith((*_PACKAGES, "<frozen ")) or name.endswith("/contextlib.py")


def innermost(frames: Sequence[FrameSummary]) -> str:
    """Return the innermost line outside the library in a stack, or ""."""
    outside = [line(frame) for frame in frames if not is_inside(frame.filename)]
    return outside[-1] if outside else ""


def line(frame: FrameSummary) -> str:
    """Return a frame as ``file:line in function``."""
    return f"{frame.filename}:{frame.lineno} in {frame.name}"
