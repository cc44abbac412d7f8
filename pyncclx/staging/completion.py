"""Operations on host copies that go on without their request: results go back, and copies live, until MPI is done."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterable, Sequence

import numpy as np
from mpi4py import MPI

from ..system.process import held
from .copies import Copy, copy_back


def copy_back_on_completion(request: MPI.Request, copies: Sequence[Copy]) -> MPI.Request:
    """A request of mpi4py's that takes results to the device when it completes, by whatever call.

    An mpi4py request holds on to its buffers, and lets go of them when it has completed. Not all of mpi4py's methods
    give it some; so it is made to hold one whose end runs a function.
    """
    look_after_abandoned()
    held = np.empty(0, np.uint8)
    weakref.finalize(held, copy_back, copies).atexit = False
    holder = MPI.COMM_SELF.Send_init([held, 0, MPI.BYTE], 0)  # never started
    holder.Free()
    holding = StagedRequest(holder)
    ctypes.memmove(MPI._addressof(holding), MPI._addressof(request), MPI._sizeof(request))
    return holding


class StagedRequest(MPI.Request):
    """mpi4py's request of an operation on host copies, which live until MPI is done, even if no call waits for that."""

    def Free(self) -> None:
        """As mpi4py's: the operation goes on."""
        if not self:
            super().Free()  # which MPI refuses
        abandon(MPI.Request(self), ())
        forget(self)

    def __del__(self) -> None:
        if not MPI.Is_finalized() and self:
            abandon(MPI.Request(self), ())


class CopiesItself:
    """A persistent request that moves its copies itself, as calls that complete many requests see it."""

    def copy_back(self) -> None:
        """Take the result to the device, if the operation has been started and is complete."""
        raise NotImplementedError


def copy_back_completed(requests: Iterable[MPI.Request]) -> None:
    """Take the results of requests that have been completed together to the device."""
    for request in requests:
        if isinstance(request, CopiesItself):
            request.copy_back()


# No call waits for these requests any more, but MPI may still read and write the copies.
_abandoned: list[tuple[MPI.Request, Sequence[Copy]]] = held([])


def abandon(request: MPI.Request, copies: Sequence[Copy]) -> None:
    """Look after an operation whose request goes before it ends."""
    _abandoned.append((request, copies))


def forget(request: MPI.Request) -> None:
    """Make a null request of one that another stands for."""
    ctypes.memmove(MPI._addressof(request), MPI._addressof(MPI.REQUEST_NULL), MPI._sizeof(request))


def look_after_abandoned() -> None:
    """Let go of copies with which MPI is done."""
    _abandoned[:] = [(request, copies) for request, copies in _abandoned if not _is_over(request, copies)]


def _is_over(request: MPI.Request, copies: Sequence[Copy]) -> bool:
    try:
        if not request.Test():
            return False
    except MPI.Exception:  # no call is there to raise it
        return True
    copy_back(copies)
    if request:  # a persistent one
        request.Free()
    return True
