"""Windows of device memory that peers cannot map.

Each rank has a public copy in host memory, which MPI exposes. This is MPI's separate memory model
(`MPI.WIN_SEPARATE`): only the owner's synchronisation calls update device array and public copy.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from mpi4py import MPI

from ..arrays import places
from ..staging.public_copy import PublicCopy
from ..team.base import Base
from ..team.state import state_of
from .accesses import Accesses
from .exposed import checked_unit

WORD_NBYTES = 1  # bytes of an access that gets a lock


class Separate(Accesses):
    """Base class of `pyncclx.Win`: copies changes between arrays and public copies.

    It does nothing for windows without public copies.
    """

    _comm: MPI.Intracomm
    # Empty if this rank's memory is on the host; None if the window has no public copies.
    _copies: tuple[PublicCopy, ...] | None = None

    def _give(self, rank: int | None = None) -> None:
        """Make this rank's stores visible to others, if a call is for its own memory."""
        for copy in self._copies_now(rank):
            copy.give()

    def _take(self, rank: int | None = None) -> None:
        """Make other ranks' stores visible to this rank, if a call is for its own memory."""
        for copy in self._copies_now(rank):
            copy.take()

    def _copies_now(self, rank: int | None) -> tuple[PublicCopy, ...]:
        return () if not self._copies or rank not in (None, self._comm.rank) else self._copies

    def _hold_own(self, rank: int | None = None) -> None:
        """Get this rank's own lock now; MPI may put it off until the first access."""
        copies = self._copies_now(rank)
        if copies and copies[0].nbytes:
            word = np.empty(WORD_NBYTES, "u1")
            MPI.Win.Get(self, [word, MPI.BYTE], self._comm.rank, [0, WORD_NBYTES, MPI.BYTE])
            MPI.Win.Flush(self, self._comm.rank)


def public_copies(comm: MPI.Intracomm, memory: Any, disp_unit: Any) -> tuple[PublicCopy, ...]:
    """Return the public copy of a rank's device array.

    The result is empty for host memory, which MPI exposes itself.

    Raises
    ------
    TypeError, MPI.Exception, BufferError
        Raised by `checked_unit`, or because the array is read-only.
    """
    checked_unit("Win.Create", disp_unit)
    if places.where(memory) != "device" or places.host_arrays():
        return ()
    return (PublicCopy(memory, "Win.Create: memory", state_of(cast(Base, comm))),)
