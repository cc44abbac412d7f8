"""The end of the program for the detector, after other functions of `atexit`."""

from __future__ import annotations

import atexit
import signal

from mpi4py import MPI

from ..system.signals import has_default_action
from . import ulfm
from .detector import DETECTOR

_FINALIZE_S = 10.0  # seconds in which MPI may end after a rank has failed


def _end() -> None:
    detector = DETECTOR.made
    if detector is not None:
        detector.end()


def _bound_finalize() -> None:
    """Bound the time of MPI_Finalize: Open MPI's may wait for a dead rank."""
    detector = DETECTOR.made
    if detector is None or not detector.has_failed or not ulfm.is_enabled() or MPI.Is_finalized():
        return
    if has_default_action(signal.SIGALRM):
        signal.setitimer(signal.ITIMER_REAL, _FINALIZE_S)


# Functions run in the reverse order of registration, so functions that the program registers later run first.
atexit.register(_bound_finalize)
atexit.register(_end)
