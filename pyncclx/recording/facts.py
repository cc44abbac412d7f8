"""What is the same in all entries of a process: its rank and host, versions, settings; and whether it records."""

from __future__ import annotations

import os
import platform
import sys
from typing import Any

from mpi4py import MPI

from ..system import settings
from ..system.process import cached

_MODULES = ("pyncclx", "mpi4py", "numpy", "cupy", "torch", "jax")
_OWN = (settings.RECORD, settings.DUMP, settings.NODE, settings.VERBOSE, settings.CACHE)  # may differ between ranks


@cached
def is_on() -> bool:
    """Whether this process records its calls."""
    return settings.RECORD.get() > 0


def records_calls() -> bool:
    """Whether it is on, and there is MPI.COMM_WORLD, by whose ranks processes are named: sessions have none."""
    return is_on() and MPI.Is_initialized() and not MPI.Is_finalized()


@cached
def records_all() -> bool:
    """Whether it also records calls with host arrays."""
    return settings.RECORD.get() > 1


def place() -> tuple[int, int]:
    """Return the rank in MPI.COMM_WORLD, and its size; those of a process alone where a program uses sessions."""
    return (MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size) if MPI.Is_initialized() else (0, 1)


def facts_of_process() -> dict[str, Any]:
    """Return what this process is."""
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
