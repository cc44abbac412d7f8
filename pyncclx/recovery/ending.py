"""The end of the program, as the failure detector sees it: after functions of `atexit`, which may communicate."""

from __future__ import annotations

import atexit
import signal

from mpi4py import MPI

from ..system.signals import has_default_action
from . import ulfm
from .detector import DETECTOR

_FINALIZE_S = 10.0  # that MPI may take to end after a rank has failed


def _end() -> None:
    detector = DETECTOR.made
    if detector is not None:
        detector.end()


def _bound_finalize() -> None:
    """Let the process end some time after this, if MPI_Finalize does not end: Open MPI's may wait for a dead rank."""
    detector = DETECTOR.made
    if detector is None or not detector.has_failed or not ulfm.is_enabled() or MPI.Is_finalized():
        return
    if has_default_action(signal.SIGALRM):
        signal.setitimer(signal.ITIMER_REAL, _FINALIZE_S)


# Functions run in the reverse order of their registration: here those that the program registers later come first.
atexit.register(_bound_finalize)
atexit.register(_end)
