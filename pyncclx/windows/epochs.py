"""Epochs of windows of device memory: MPI's own; before one ends, the host waits for the device."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from mpi4py import MPI

from .accesses import Accesses
from .exposed import Attached

WORD_NBYTES = 8  # of the memory that MPI's window has on each rank


class Epochs(Accesses):
    """The methods of `pyncclx.Win` that begin and end epochs, or complete operations in them.

    Each that completes operations waits on the host until the device has done what this rank has enqueued, and then
    takes the results of operations on host copies to the device.
    """

    _comm: MPI.Intracomm
    _words: list[int]  # of a dynamic window: the addresses of a word of each rank

    def Fence(self, assertion: int = 0) -> None:
        """End an epoch of all ranks, and begin the next. Collective. As mpi4py's Fence.

        Parameters
        ----------
        assertion : int
            MPI.MODE_NOPRECEDE and the like.
        """
        self._wait_for_device()
        super().Fence(assertion)
        self._copy_back()
        if self._reach is not None:  # MPI itself need not wait, as no call has used its window
            MPI.Comm.Barrier(self._comm)

    def Lock(self, rank: int, lock_type: int = MPI.LOCK_EXCLUSIVE, assertion: int = 0) -> None:
        """Begin an epoch with a rank; this rank has the lock when it returns. As mpi4py's Lock."""
        super().Lock(rank, lock_type, assertion)
        self._acquire(rank)

    def Lock_all(self, assertion: int = 0) -> None:
        """Begin an epoch with all ranks; this rank has their shared locks when it returns. As mpi4py's Lock_all."""
        super().Lock_all(assertion)
        if self._reach is not None:
            for rank in range(self._comm.size):
                self._acquire(rank)

    def Unlock(self, rank: int) -> None:
        """End the epoch with a rank: its operations are complete. As mpi4py's Unlock."""
        self._complete_by(super().Unlock, rank)

    def Unlock_all(self) -> None:
        """End the epoch with all ranks: its operations are complete. As mpi4py's Unlock_all."""
        self._complete_by(super().Unlock_all)

    def Flush(self, rank: int) -> None:
        """Complete the operations with a rank, here and there. As mpi4py's Flush."""
        self._complete_by(super().Flush, rank)

    def Flush_all(self) -> None:
        """Complete all operations, here and at the targets. As mpi4py's Flush_all."""
        self._complete_by(super().Flush_all)

    def Flush_local(self, rank: int) -> None:
        """Complete the operations with a rank here: their arrays may be used again. As mpi4py's Flush_local."""
        self._complete_by(super().Flush_local, rank)

    def Flush_local_all(self) -> None:
        """Complete all operations here: their arrays may be used again. As mpi4py's Flush_local_all."""
        self._complete_by(super().Flush_local_all)

    def Post(self, group: MPI.Group, assertion: int = 0) -> None:
        """Expose this rank's memory to the ranks of a group, as it is now on the device. As mpi4py's Post."""
        self._wait_for_device()
        super().Post(group, assertion)

    def Complete(self) -> None:
        """End the epoch that `Start` has begun: its operations are complete. As mpi4py's Complete."""
        self._complete_by(super().Complete)

    def Sync(self) -> None:
        """Make what this rank has stored visible to the others, and theirs to it. As mpi4py's Sync."""
        self._wait_for_device()
        super().Sync()

    def _complete_by(self, call: Callable[..., None], *rank: int) -> None:
        """Complete operations with a rank, or with all, by a call of MPI's."""
        self._wait_for_device()
        call(*rank)
        self._copy_back(*rank)

    def _wait_for_device(self) -> None:
        if self._reach is not None and self._reach.in_use:
            self._reach.device.synchronize()

    def _acquire(self, rank: int) -> None:
        """Get the lock now: MPI may put it off until the first access, which is made to a word of its own window."""
        if self._reach is not None and self._reach.in_use and rank != MPI.PROC_NULL:
            place = self._words[rank] if isinstance(self._reach, Attached) else 0
            word = np.empty(WORD_NBYTES, "u1")  # MPI may write to it until the Flush
            MPI.Win.Get(self, [word, MPI.BYTE], rank, [place, WORD_NBYTES, MPI.BYTE])
            MPI.Win.Flush(self, rank)
