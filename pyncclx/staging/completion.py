"""Requests that keep the host copies of an operation until MPI completes it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from mpi4py import MPI

from mpi_bootstrap.own_errors import own_error

from ..errors import NotSupported
from ..requests.completing import finish_in_mpi
from ..requests.host_receive import ENVELOPE_MAGIC
from ..requests.request import request_of
from ..requests.status import copy_status
from ..requests.work import Startable, Work
from ..system.process import held
from .copies import Copy, copy_back


def copy_back_on_completion(request: MPI.Request, copies: Sequence[Copy]) -> MPI.Request:
    """Return a request that copies results to the device when it completes.

    The program gets a request of this library; mpi4py's request stays internal. So any MPI call may complete the
    program's request, also through a copy of its handle.
    """
    look_after_abandoned()
    return request_of(StagedCall(request, copies))


# No call waits for these operations, but MPI may still access their copies.
_abandoned: list[StagedCall] = held([])


def abandon(call: StagedCall) -> None:
    """Keep the copies of an operation whose request is dropped before it completes."""
    _abandoned.append(call)


def look_after_abandoned() -> None:
    """Drop the copies of abandoned operations that have completed."""
    _abandoned[:] = [call for call in _abandoned if not call.end_abandoned()]


def start_several(works: Sequence[StagedWork]) -> None:
    """Copy device arrays to the host, and start mpi4py's requests by one call."""
    for work in works:
        work.prepare()
    MPI.Prequest.Startall([work.request for work in works])
    for work in works:
        work.active = True


class StagedCall(Work):
    """An operation of mpi4py's on host copies; its results are copied back at the end.

    Parameters
    ----------
    request : MPI.Request
        mpi4py's request on the host copies. The program has no handle of it.
    copies : sequence of Copy
    """

    finisher = staticmethod(finish_in_mpi)
    _has_come = False  # MPI has completed the request
    _error: MPI.Exception | None = None  # raised by MPI at the end

    def __init__(self, request: MPI.Request, copies: Sequence[Copy]) -> None:
        self.request, self._copies, self._status = request, copies, MPI.Status()

    def is_over(self) -> bool:
        """Return whether MPI has completed the operation.

        MPICH completes the operation even if only its status is queried.
        """
        if not self._has_come:
            try:
                # With `map`, Python runs no signal handler between MPI's return and the assignment.
                (self._has_come,) = map(self.request.Test, (self._status,))
            except MPI.Exception as error:
                self._has_come, self._error = True, error
        return self._has_come

    def finish(self) -> None:
        """Wait for MPI, and copy the result to the device."""
        if not self._has_come:
            try:
                # As in `is_over`, `map` keeps signal handlers from running before the assignment.
                (self._has_come,) = map(self.request.Wait, (self._status,))
            except MPI.Exception as error:
                self._has_come, self._error = True, error
        failure = self._error
        try:
            if failure is None:
                self.copy_back()
        except BaseException as error:
            # After an interrupt, the operation can be finished again.
            self.active = own_error(error) is None
            raise
        self.active, self._error = False, None
        if failure is not None:
            raise failure

    def copy_back(self) -> None:
        """Copy the result to the device."""
        copy_back(self._copies)

    def fill(self, status: MPI.Status) -> None:
        """Set a status to MPI's status."""
        copy_status(status, self._status)

    def cancel(self) -> None:
        """Let MPI cancel the operation."""
        self.request.Cancel()

    def abandon(self) -> None:
        """Let the operation continue without its request."""
        abandon(self)

    drop = abandon

    def end_abandoned(self) -> bool:
        """Copy back and return True if MPI has completed an abandoned operation."""
        if not self.request and not self._has_come:
            # Another object has the same MPI request, and has completed it.
            return True
        if not self.is_over():
            return False
        # No call is left to raise the error.
        if self._error is None:
            copy_back(self._copies)
        self._copies = ()
        if self.request:  # it was persistent
            self.request.Free()
        return True


class StagedWork(StagedCall, Startable):
    """A persistent operation on host copies, with copying at each start and end.

    Parameters
    ----------
    name : str
        Name of the method that made the request.
    request : MPI.Prequest
        mpi4py's request on the host copies.
    copies : sequence of Copy
    partitions : int
        Number of partitions of a partitioned operation; 0 for others.
    """

    starter = staticmethod(start_several)
    request: MPI.Prequest
    active, is_persistent = False, True
    _is_left = False  # the operation continues without its request

    def __init__(self, name: str, request: MPI.Prequest, copies: Sequence[Copy], partitions: int) -> None:
        look_after_abandoned()
        super().__init__(request, copies)
        self.name, self._partitions = name, partitions

    def check_owner(self) -> None:
        """Do nothing, because MPI completes operations even of freed communicators."""

    def prepare(self) -> None:
        """Copy the device arrays to the host; `ready` copies the partitions of a send."""
        self._has_come = False
        for copy in self._copies:
            if not self._partitions or copy.written:
                copy.download()

    def copy_back(self) -> None:
        """Copy the result to the device.

        Raises
        ------
        NotSupported
            If MPI received the envelope of a device array, whose data only kernels can fetch.
        """
        if any(copy.written and bytes(copy.host[: len(ENVELOPE_MAGIC)]) == ENVELOPE_MAGIC for copy in self._copies):
            raise NotSupported(
                "Recv_init: the message is a device array's, from Send or Isend, whose data kernels move; receive "
                "it by Recv or Irecv, or send it by Send_init"
            )
        super().copy_back()

    def abandon(self) -> None:
        """Let the operation continue without its request."""
        self._is_left = True
        super().abandon()

    drop = abandon

    def close(self) -> None:
        """Free mpi4py's request, unless the operation continues."""
        if self.request and not self._is_left:
            self.request.Free()

    # Partitions

    @property
    def pointer(self) -> int:
        """Raise NotSupported, because MPI sends and receives the partitions."""
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
