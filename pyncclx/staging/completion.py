"""Operations on host copies that go on without their request: results land, and copies live, until MPI is done."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence

import numpy as np
from mpi4py import MPI

from .copies import Copy


def land_on_completion(request: MPI.Request, copies: Sequence[Copy]) -> MPI.Request:
    """A request of mpi4py's that takes results to the device when it completes, by whatever call.

    An mpi4py request holds on to its buffers, and lets go of them when it has completed. Not all of mpi4py's methods
    give it some; so it is made to hold one whose end we are told of.
    """
    look_after_abandoned()
    held = np.empty(0, np.uint8)
    weakref.finalize(held, upload, copies).atexit = False
    holder = MPI.COMM_SELF.Send_init([held, 0, MPI.BYTE], 0)  # never started
    holder.Free()
    holding = StagedRequest(holder)
    ctypes.memmove(MPI._addressof(holding), MPI._addressof(request), MPI._sizeof(request))
    return holding


class StagedRequest(MPI.Request):
    """mpi4py's request of an operation on host copies, which live until MPI is done, also if nobody waits for that."""

    def Free(self) -> None:
        """As mpi4py's: the operation goes on."""
        if not self:
            super().Free()  # which MPI refuses
        abandon(MPI.Request(self), ())
        forget(self)

    def __del__(self) -> None:
        if not MPI.Is_finalized() and self:
            abandon(MPI.Request(self), ())


_abandoned: list[tuple[MPI.Request, Sequence[Copy]]] = []  # what nobody waits for, but MPI may still read and write


def abandon(request: MPI.Request, copies: Sequence[Copy]) -> None:
    """Look after an operation whose request goes before it ends."""
    _abandoned.append((request, copies))


def forget(request: MPI.Request) -> None:
    """Make it a null request, which another one stands for."""
    ctypes.memmove(MPI._addressof(request), MPI._addressof(MPI.REQUEST_NULL), MPI._sizeof(request))


def look_after_abandoned() -> None:
    """Let go of copies with which MPI is done."""
    _abandoned[:] = [(request, copies) for request, copies in _abandoned if not _is_over(request, copies)]


def _is_over(request: MPI.Request, copies: Sequence[Copy]) -> bool:
    try:
        if not request.Test():
            return False
    except MPI.Exception:  # nobody has asked
        return True
    upload(copies)
    if request:  # a persistent one
        request.Free()
    return True


def upload(copies: Sequence[Copy]) -> None:
    """Take what has come to the device."""
    for copy in copies:
        copy.upload()
