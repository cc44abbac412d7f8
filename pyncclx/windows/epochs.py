"""Epochs of windows over device memory: MPI's own; before one ends, the host waits for the GPU."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

from .accesses import Accesses
from .exposed import Attached

WORD = 8  # bytes of what MPI's window has of each rank


class Epochs(Accesses, MPI.Win):
    """The methods of `pyncclx.Win` that begin, end and complete."""

    _comm: MPI.Intracomm
    _words: list[int]  # of a dynamic window: the addresses of a word of each rank

    def _settle(self) -> None:
        """Wait for the GPU: what this rank has enqueued is done."""
        if self._exposed is not None and self._exposed.in_use:
            self._exposed.device.synchronize()

    def Fence(self, assertion: int = 0) -> None:
        """End an epoch and begin the next. Collective."""
        self._settle()
        super().Fence(assertion)
        self._copy_back()
        if self._exposed is not None:  # MPI itself need not wait, as nobody has used its window
            MPI.Comm.Barrier(self._comm)

    def Lock(self, rank: int, lock_type: int = MPI.LOCK_EXCLUSIVE, assertion: int = 0) -> None:
        """Begin an epoch with a rank; the lock is had when it returns."""
        super().Lock(rank, lock_type, assertion)
        self._insist(rank)

    def Lock_all(self, assertion: int = 0) -> None:
        """Begin an epoch with all ranks, shared."""
        super().Lock_all(assertion)
        if self._exposed is not None:
            for rank in range(self._comm.size):
                self._insist(rank)

    def _insist(self, rank: int) -> None:
        """MPI may put a lock off until the first access: make one, of the word beneath the device's memory."""
        if self._exposed is not None and self._exposed.in_use and rank != MPI.PROC_NULL:
            place = self._words[rank] if isinstance(self._exposed, Attached) else 0
            word = np.empty(WORD, "u1")  # MPI may write to it until the Flush
            MPI.Win.Get(self, [word, MPI.BYTE], rank, [place, WORD, MPI.BYTE])
            MPI.Win.Flush(self, rank)


def _settling(name: str, *, completes: bool) -> Callable[..., Any]:
    original = getattr(MPI.Win, name)

    @functools.wraps(original)
    def method(self: Epochs, *args: Any, **kwargs: Any) -> Any:
        self._settle()
        result = original(self, *args, **kwargs)
        if completes:  # operations with the rank that is its argument, or with all
            self._copy_back(*args, **kwargs)
        return result

    return method


for _name in ("Complete", "Unlock", "Unlock_all", "Flush", "Flush_all", "Flush_local", "Flush_local_all"):
    setattr(Epochs, _name, _settling(_name, completes=True))
for _name in ("Post", "Sync"):
    setattr(Epochs, _name, _settling(_name, completes=False))
