"""Failures of ranks on other nodes, which the detector learns from MPI (ULFM)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from mpi4py import MPI

from mpi_bootstrap.presence import Note

from ..recovery import ulfm
from ..recovery.detector import DETECTOR
from ..recovery.losses import Loss

# Seconds in which a rank waits after an odd error, until MPI has found its reason. Others may find it sooner.
_PATIENCE_S = 0.5
_PAUSE_S = 0.01


class Lookout:
    """All ranks of a communicator over nodes, for the failure detector.

    It implements `recovery.losses.Watched`.

    Parameters
    ----------
    comm : MPI.Intracomm
    lost : callable
        Called with the loss, in the detector's thread.
    is_busy : callable
        Returns whether a step may be under way. Any thread may call it.
    """

    id: bytes = b""
    uids: Sequence[bytes] = ()
    is_of_messages = False

    def __init__(self, comm: MPI.Intracomm, lost: Callable[[Loss], None], is_busy: Callable[[], bool]) -> None:
        self.rank, self._lost, self.is_busy = comm.rank, lost, is_busy
        self.loss: Loss | None = None
        self.world_ranks: tuple[int, ...] = ()
        self._comm = MPI.Comm(comm) if ulfm.is_enabled() else None
        self._may_wait = self._comm is not None
        if self._comm is not None:
            self.world_ranks = ulfm.world_ranks(self._comm)
        DETECTOR.get().watch(self)

    @property
    def comm(self) -> MPI.Comm | None:
        """mpi4py's communicator; None if MPI does not tolerate failed ranks."""
        return self._comm

    def may_launch(self) -> bool:
        """Return False: graphs hold no MPI step, and the node's Team is watched by itself."""
        return False

    def lose(self, loss: Loss) -> None:
        """Record that ranks have failed or that the communicator was revoked."""
        if self.loss is None or len(loss.ranks) > len(self.loss.ranks):
            # The detector has no host names of other nodes.
            self.loss = replace(loss, host="")
            self._lost(self.loss)

    def give_up(self, kind: str) -> None:
        """Do nothing: the node's Team is watched by itself."""

    def given_up(self) -> Note | None:
        """Return None: the node's Team is watched by itself."""
        return None

    def wait(self) -> Loss | None:
        """Return the loss; the first call waits up to half a second for it."""
        end = time.monotonic() + _PATIENCE_S
        while self.loss is None and self._may_wait and time.monotonic() < end:
            time.sleep(_PAUSE_S)
        self._may_wait = False
        return self.loss

    def close(self) -> None:
        """Stop watching: the communicator may be freed."""
        if DETECTOR.made is not None:
            DETECTOR.made.forget(self)
