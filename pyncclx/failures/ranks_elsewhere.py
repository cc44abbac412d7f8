"""Failures of ranks on other nodes, which the detector learns from MPI (ULFM)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from mpi4py import MPI

from ..system.mpi_library import goes_on_after_failures
from . import ulfm
from .comm_failures import CommFailure, Monitored
from .detector import DETECTOR

# Seconds that a rank waits after an unexplained error for MPI to find a failed rank. Other ranks may learn of it
# earlier.
_PATIENCE_S = 0.5
_PAUSE_S = 0.01


class RanksElsewhere(Monitored):
    """All ranks of a communicator over nodes, for the failure detector.

    The ranks of this node also form a Team, which the detector watches separately.

    Parameters
    ----------
    comm : MPI.Intracomm
    failed : callable
        Called with the failure, in the detector's thread.
    is_busy : callable
        Returns whether a step may be under way. Any thread may call it.
    """

    def __init__(self, comm: MPI.Intracomm, failed: Callable[[CommFailure], None], is_busy: Callable[[], bool]) -> None:
        self.rank, self._failed, self.is_busy = comm.rank, failed, is_busy
        if goes_on_after_failures():
            self.comm, self.world_ranks = MPI.Comm(comm), ulfm.world_ranks(comm)
        self._may_wait = self.comm is not None
        DETECTOR.get().watch(self)

    def fail(self, failure: CommFailure) -> None:
        """Record that ranks have failed or that the communicator was revoked."""
        if self.comm_failure is None or len(failure.ranks) > len(self.comm_failure.ranks):
            # The detector has no host names of other nodes.
            self.comm_failure = replace(failure, host="")
            self._failed(self.comm_failure)

    def wait(self) -> CommFailure | None:
        """Return the failure; the first call waits up to half a second for it."""
        end = time.monotonic() + _PATIENCE_S
        while self.comm_failure is None and self._may_wait and time.monotonic() < end:
            time.sleep(_PAUSE_S)
        self._may_wait = False
        return self.comm_failure

    def close(self) -> None:
        """Stop watching: the communicator may be freed."""
        if DETECTOR.made is not None:
            DETECTOR.made.forget(self)
