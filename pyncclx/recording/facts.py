"""Facts of a process, lines of its program, and identities of its communicators.

The identity of a communicator is the same on all ranks, and needs no communication. It consists of the COMM_WORLD ranks
of the processes, and a number that distinguishes communicators of the same processes.
"""

from __future__ import annotations

import json
import operator
import os
import platform
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from traceback import FrameSummary
from types import CodeType, FrameType
from typing import Any, NamedTuple

from mpi4py import MPI

from mpi_bootstrap.groups import ranks_in_world

from ..system import settings
from ..system.process import cached, held

_MODULES = ("pyncclx", "mpi4py", "numpy", "cupy", "torch", "jax")
# Settings that may differ between ranks.
_OWN = (settings.RECORD, settings.DUMP, settings.NODE, settings.VERBOSE, settings.CACHE)

_PACKAGES = tuple(f"{Path(__file__).resolve().parents[2] / name}/" for name in ("pyncclx", "mpi_bootstrap"))
# Whether `site` skips a function's code; see `is_inside`.
_inside: dict[CodeType, bool] = held({})
# Most ranks that the text of a communicator lists.
MOST_LISTED = 1024

_made: Counter[tuple[str, Sequence[int], Sequence[int]]] = held(Counter())


@cached
def is_on() -> bool:
    """Return whether this process records its calls."""
    return settings.RECORD.get() > 0


def records_calls() -> bool:
    """Return whether calls are recorded now.

    Recording needs MPI.COMM_WORLD, whose ranks name the processes. Programs that use MPI sessions instead have no
    COMM_WORLD.
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
    """Return the rank, host, program, versions and settings of this process."""
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


class Identity(NamedTuple):
    """Identity of a communicator or a window.

    Attributes
    ----------
    kind : str
        "comm" or "win".
    world : range, or tuple of int
        Ranks of its processes in MPI.COMM_WORLD; MPI.UNDEFINED for processes of another world. Ranks that are equally
        far apart are a range, which takes no memory for each rank.
    remote : range, or tuple of int
        Ranks of an intercommunicator's other group.
    number : int
        Number of earlier communicators, or windows, with the same processes. It is equal on all ranks, because creating
        one is collective.
    """

    kind: str
    world: Sequence[int]
    remote: Sequence[int]
    number: int

    def another(self) -> Identity:
        """Return the identity of the next object that the same processes create."""
        return _numbered(self.kind, self.world, self.remote)

    def text(self, name: str, rank: int) -> str:
        """Return the identity as JSON, with the program's name and this process's rank."""
        fields = {"kind": self.kind, "number": self.number, "name": name, "rank": rank, "size": len(self.world)}
        ranks = {"world": list(self.world[:MOST_LISTED])}
        ranks |= {"remote": list(self.remote[:MOST_LISTED])} if self.remote else {}
        return json.dumps(fields | ranks)


def identity_of(comm: MPI.Comm) -> Identity:
    """Return the identity of a communicator that is created or first used now."""
    remote = compact(ranks_in_world(comm.Get_remote_group())) if isinstance(comm, MPI.Intercomm) else ()
    return _numbered("comm", compact(ranks_in_world(comm.Get_group())), remote)


def identity_of_window(win: MPI.Win) -> Identity:
    """Return the identity of a window that is created or first used now."""
    return _numbered("win", compact(ranks_in_world(win.Get_group())), ())


def _numbered(kind: str, world: Sequence[int], remote: Sequence[int]) -> Identity:
    key = kind, world, remote
    number = _made[key]
    _made[key] += 1
    return Identity(*key, number)


def compact(ranks: Sequence[int]) -> Sequence[int]:
    """Return ranks as a range if they are equally far apart."""
    if not ranks or isinstance(ranks, range):
        return ranks
    first, step = ranks[0], ranks[1] - ranks[0] if len(ranks) > 1 else 1
    equally_far = range(first, first + step * len(ranks), step) if step else ranks
    return equally_far if all(map(operator.eq, ranks, equally_far)) else ranks
