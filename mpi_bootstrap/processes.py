"""Processes of this node, as /proc shows them."""

import os
from pathlib import Path
from typing import NamedTuple


class Process(NamedTuple):
    """A process's entry in /proc; fields have their defaults if it is hidden or gone.

    Attributes
    ----------
    state : str
        A letter, such as R, S, T (stopped) or Z.
    started : int
        Start time in clock ticks. Together with the process id it identifies a process, because Linux reuses ids.
    cpu_s : float
        Processor time that the process has used, in seconds.
    """

    state: str = ""
    started: int = 0
    cpu_s: float = 0.0

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended, even if its /proc entry is left (a zombie)."""
        return self.state in ("", "Z", "X")


def process(pid: int | str) -> Process | None:
    """Return the entry of a process in /proc; None if it cannot be read.

    None does not mean that the process has ended: reading also fails if, for example, no file descriptor is free.

    Examples
    --------
    >>> process("self").has_ended
    False
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return Process()
    except OSError:
        return None
    return Process(fields[0], int(fields[19]), (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"))


def pid_namespace() -> int:
    """Return the number of this PID namespace; 0 if /proc does not show it."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino if os.readlink("/proc/self") == str(os.getpid()) else 0
    except OSError:
        return 0
