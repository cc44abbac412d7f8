"""Inject the faults in PYNCCLX_FAULT: kill, stop or delay a rank, raise and so on.

While the variable is not set, no method is changed and no call takes longer.
"""

from __future__ import annotations

import difflib
import functools
import math
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from mpi4py import MPI

from ..errors import NotSupported
from ..memory import table
from ..memory.layout import CHANNEL_NBYTES, HEADER_NBYTES
from ..system import settings
from ..system.faults import Fault
from ..system.notes import warn_once
from ..system.process import held
from ..team.base import Base
from ..team.handlers import is_ours
from ..team.state import state_of

_PATTERN = 0x5A
_calls: dict[str, int] = held({})  # number of calls of each method on this rank


class InjectedFault(RuntimeError):
    """The exception that ``do=raise`` of PYNCCLX_FAULT raises."""


def arm(classes: Iterable[type]) -> None:
    """Make the methods that PYNCCLX_FAULT names cause their faults.

    Raises
    ------
    ValueError
        If no class has a method of that name.
    """
    classes, faults = list(classes), settings.FAULT.get()
    for name in dict.fromkeys(fault.call for fault in faults):
        owners = {base for cls in classes for base in cls.__mro__ if name in vars(base) and is_ours(base)}
        inherited = [cls for cls in classes if callable(getattr(cls, name, None))]
        if not inherited:
            names = {each for cls in classes for each in dir(cls)}
            near = difflib.get_close_matches(name, names, n=1, cutoff=0.0)[0]
            raise ValueError(f"{settings.FAULT.name}: there is no method {name}; did you mean {near}?")
        chosen = [fault for fault in faults if fault.call == name]
        for owner in owners or inherited[:1]:
            setattr(owner, name, _with_faults(getattr(owner, name), name, chosen))


def _with_faults(method: Callable[..., Any], name: str, faults: list[Fault]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        number = _calls[name] = _calls.get(name, 0) + 1
        for fault in faults:
            if fault.nth == number and fault.rank in (None, MPI.COMM_WORLD.rank):
                warn_once(f"rank {MPI.COMM_WORLD.rank}: fault injected into call {number} of {name}: {fault}")
                if fault.do == "skip":
                    return None
                _commit(fault, self)
        return method(self, *args, **kwargs)

    return call


def _commit(fault: Fault, owner: Any) -> None:
    """Cause a fault, now or after its delay."""
    if fault.after_s > 0:
        timer = threading.Timer(fault.after_s, _act, [fault, owner])
        timer.daemon = True
        timer.start()
    else:
        _act(fault, owner)


def _act(fault: Fault, owner: Any) -> None:
    pid = os.getpid()
    if fault.do == "kill":
        os.kill(pid, signal.SIGKILL)
    elif fault.do == "interrupt":
        os.kill(pid, signal.SIGINT)
    elif fault.do == "stop":
        # A stopped process cannot continue itself, so a child process continues it.
        if fault.seconds < math.inf:
            subprocess.Popen(["/bin/sh", "-c", f"sleep {fault.seconds}; kill -CONT {pid}"], start_new_session=True)
        os.kill(pid, signal.SIGSTOP)
    elif fault.do == "delay":
        time.sleep(fault.seconds)
    elif fault.do == "raise":
        raise InjectedFault(f"{settings.FAULT.name}: rank {MPI.COMM_WORLD.rank}, call {fault.nth} of {fault.call}")
    else:
        _corrupt(owner)


def _corrupt(owner: Any) -> None:
    """Overwrite the epochs in this rank's lease, as a stray pointer might."""
    team = state_of(owner).team if isinstance(owner, Base) else None
    if team is None:
        raise NotSupported(f"{settings.FAULT.name}: do=corrupt-header needs a communicator that uses the device")
    nonsense = bytes([_PATTERN]) * (team.layout.channels * CHANNEL_NBYTES)
    table.write(team.device, team.bases[team.rank] + HEADER_NBYTES, nonsense)
