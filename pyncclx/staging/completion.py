"""Requests of operations on host copies, which live until MPI has completed them."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from ..errors import NotSupported
from ..requests.host_receive import ENVELOPE_MAGIC
from ..requests.status import copy_status
from ..requests.work import Startable
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


def start_several(works: Sequence[StagedWork]) -> None:
    """Copy device arrays to the host, and start mpi4py's requests by one call."""
    for work in works:
        work.prepare()
    MPI.Prequest.Startall([work.request for work in works])
    for work in works:
        work.active = True


class StagedWork(Startable):
    """A persistent operation of mpi4py's on host copies, copied at start and end.

    Parameters
    ----------
    name : str
        Of the method that has made the request.
    request : MPI.Prequest
        mpi4py's request on the host copies.
    copies : sequence of Copy
    partitions : int
        Number of partitions of a partitioned operation; 0 for others.
    """

    starter = staticmethod(start_several)
    _has_come = False  # MPI has completed the request
    _is_left = False  # it goes on without its request
    _error: MPI.Exception | None = None  # raised by MPI at the end

    def __init__(self, name: str, request: MPI.Prequest, copies: Sequence[Copy], partitions: int) -> None:
        look_after_abandoned()
        self.name, self.request = name, request
        self._copies, self._partitions, self._status = copies, partitions, MPI.Status()

    def check_owner(self) -> None:
        """Raise nothing: MPI completes operations of communicators that have been freed."""

    def prepare(self) -> None:
        """Copy the device arrays to the host, but not partitions that are not ready."""
        self._has_come = False
        for copy in self._copies:
            if not self._partitions or copy.written:
                copy.download()

    def is_over(self) -> bool:
        """Whether MPI has completed the operation.

        MPICH completes it when it is asked for the status only.
        """
        if not self._has_come:
            try:
                self._has_come = self.request.Test(self._status)
            except MPI.Exception as error:
                self._has_come, self._error = True, error
        return self._has_come

    def finish(self) -> None:
        """Wait for MPI, and copy the result to the device.

        Raises
        ------
        NotSupported
            A device array's envelope was received, whose data kernels were to receive.
        """
        self.active = False
        if not self._has_come:
            self.request.Wait(self._status)
        error, self._error = self._error, None
        if error is not None:
            raise error
        if any(copy.written and bytes(copy.host[: len(ENVELOPE_MAGIC)]) == ENVELOPE_MAGIC for copy in self._copies):
            raise NotSupported(
                "Recv_init: the message is a device array's, from Send or Isend, whose data kernels move; receive "
                "it by Recv or Irecv, or send it by Send_init"
            )
        copy_back(self._copies)

    def fill(self, status: MPI.Status) -> None:
        """Set a status to the one of MPI."""
        copy_status(status, self._status)

    def cancel(self) -> None:
        """Let MPI cancel the operation."""
        self.request.Cancel()

    def abandon(self) -> None:
        """Let the operation go on without its request."""
        self._is_left = True
        abandon(self.request, self._copies)

    drop = abandon

    def close(self) -> None:
        """Free mpi4py's request, unless the operation goes on."""
        if self.request and not self._is_left:
            self.request.Free()

    # Partitions

    @property
    def pointer(self) -> int:
        """Raise NotSupported: MPI sends and receives the partitions."""
        raise NotSupported(f"{self.name}: MPI moves host copies, which no kernel can send; call Pready")

    def ready(self, method: str, partitions: Iterable[int]) -> None:
        """Copy some partitions to the host, and mark them ready."""
        numbers = list(partitions)
        for copy in self._copies:
            for partition in numbers:
                copy.download(copy.partition(partition, self._partitions))
        self.request.Pready_list(numbers)

    def arrived(self, partition: int) -> bool:
        """Return whether a partition has arrived; copy arrived data to the device."""
        flag: Any = self.request.Parrived(partition)
        if flag:
            copy_back(self._copies)
        return bool(flag)
