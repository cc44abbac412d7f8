"""What the failure detector finds of the ranks on other nodes: it asks MPI, where MPI goes on when ranks fail."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from mpi4py import MPI

from mpi_bootstrap.presence import Note

from ..recovery import ulfm
from ..recovery.detector import DETECTOR
from ..recovery.losses import Loss

_PATIENCE_S = 0.5  # of a rank that has found something odd, until MPI has found why: other ranks may have sooner
_PAUSE_S = 0.01


class Lookout:
    """All ranks of a communicator over nodes, as the detector looks after them; see `recovery.detector.Watched`.

    Parameters
    ----------
    comm : MPI.Intracomm
    lost : callable
        Called, from the detector's thread, with what has been lost.
    is_busy : callable
        Whether a step may be under way; by any thread.
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
        """The communicator, as mpi4py's."""
        return self._comm

    def may_launch(self) -> bool:
        """Return False: no graph holds what MPI moves, and the node's Team is looked after by itself."""
        return False

    def lose(self, loss: Loss) -> None:
        """Take note of ranks that have failed, or that the communicator was revoked."""
        if self.loss is None or len(loss.ranks) > len(self.loss.ranks):
            self.loss = replace(loss, host="")  # of other nodes the detector has no name
            self._lost(self.loss)

    def give_up(self, kind: str) -> None:
        """Do nothing: the node's Team is looked after by itself."""

    def given_up(self) -> Note | None:
        """Return None, for the same reason."""
        return None

    def wait(self) -> Loss | None:
        """Return the loss, for which a rank waits for a short time if it has not done so before."""
        end = time.monotonic() + _PATIENCE_S
        while self.loss is None and self._may_wait and time.monotonic() < end:
            time.sleep(_PAUSE_S)
        self._may_wait = False
        return self.loss

    def close(self) -> None:
        """Look no more: the communicator may be freed."""
        if DETECTOR.made is not None:
            DETECTOR.made.forget(self)
