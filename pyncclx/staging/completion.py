"""Staged operations whose request is gone: copies live until MPI has completed."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence

import numpy as np
from mpi4py import MPI

from ..system.mpi_library import is_child, mpi_is_gone
from ..system.process import held
from .copies import Copy, copy_back


def copy_back_on_completion(request: MPI.Request, copies: Sequence[Copy]) -> MPI.Request:
    """Return a request that copies results to the device when it completes.

    Any of MPI's calls may complete it. An mpi4py request keeps its buffers alive until it has completed, but not all of
    mpi4py's methods set them. So this request is made to hold a buffer whose finalizer copies the results.
    """
    look_after_abandoned()
    held = np.empty(0, np.uint8)
    weakref.finalize(held, _copy_back, copies).atexit = False
    holder = MPI.COMM_SELF.Send_init([held, 0, MPI.BYTE], 0)  # never started
    holder.Free()
    holding = StagedRequest(holder)
    ctypes.memmove(MPI._addressof(holding), MPI._addressof(request), MPI._sizeof(request))
    return holding


def _copy_back(copies: Sequence[Copy]) -> None:
    if not is_child():
        copy_back(copies)


class StagedRequest(MPI.Request):
    """A request on host copies, which live until MPI has completed the operation."""

    def Free(self) -> None:
        """Free the request; the operation goes on."""
        if not self:
            super().Free()  # MPI raises its error
        abandon(MPI.Request(self), ())
        forget(self)

    def __del__(self) -> None:
        if not mpi_is_gone() and self:
            abandon(MPI.Request(self), ())


# No call waits for these requests any more, but MPI may still access their copies.
_abandoned: list[tuple[MPI.Request, Sequence[Copy]]] = held([])


def abandon(request: MPI.Request, copies: Sequence[Copy]) -> None:
    """Keep the copies of an operation whose request goes away before it completes."""
    _abandoned.append((request, copies))


def forget(request: MPI.Request) -> None:
    """Make a request null that another request stands for."""
    ctypes.memmove(MPI._addressof(request), MPI._addressof(MPI.REQUEST_NULL), MPI._sizeof(request))


def look_after_abandoned() -> None:
    """Drop the copies of abandoned operations that have completed."""
    _abandoned[:] = [(request, copies) for request, copies in _abandoned if not _is_over(request, copies)]


def _is_over(request: MPI.Request, copies: Sequence[Copy]) -> bool:
    try:
        if not request.Test():
            return False
    except MPI.Exception:  # no call could raise it
        return True
    copy_back(copies)
    if request:  # it was persistent
        request.Free()
    return True
