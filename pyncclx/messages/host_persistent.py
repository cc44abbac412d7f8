"""Persistent receives of host arrays, which are mpi4py's: what comes may be a device array's message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from mpi4py import MPI

from ..errors import MPIError
from ..requests.host_receive import HostReceive
from ..requests.status import copy_status
from ..staging.requests import Prequest
from .host_receive import HostLanding, landing_of

if TYPE_CHECKING:
    from .base import MessageBase


_test = MPI.Request.Test


class HostReceivePrequest(HostReceive, Prequest):
    """The request of `Recv_init`.

    MPICH completes a persistent request where it is asked for its status. So this one has MPI complete it, keeps the
    status and the error, and is active until the program completes it.
    """

    _received: MPI.Status | None = None  # of a message that the program has still to complete
    _error: MPI.Exception | None = None  # of that message

    def prepare(self) -> None:
        """Raise MPI.Exception, of class ERR_REQUEST, if a message has come that the program has not completed."""
        if self._received is not None:
            raise MPIError(MPI.ERR_REQUEST, "Start: the request is active; Wait for it first")

    def has_come(self, status: MPI.Status) -> bool | None:
        """Return whether MPI has received the message, and set the status if so; None if nothing is active."""
        if self._received is not None:
            copy_status(status, self._received)
            status.Set_error(self._received.Get_error())
            return True
        try:
            if not _test(self, status):
                return False
        except MPI.Exception as error:
            self._error = error
            status.Set_error(error.Get_error_code())
        is_empty = status.source == MPI.ANY_SOURCE and not status.Is_cancelled()
        if is_empty and self._error is None:
            return None
        self._received = MPI.Status(status)
        return True

    def finish(self, status: MPI.Status) -> None:
        """Wait for the message, and set the status."""
        received = self._received
        if received is None:
            super().finish(status)
        else:
            try:
                self.finish_received(status)
            finally:
                copy_status(status, received)

    def finish_received(self, status: MPI.Status) -> None:
        """Do what `finish` does when the status has just been set."""
        received, self._received = cast(MPI.Status, self._received), None
        error, self._error = self._error, None
        if error is not None:
            raise error
        self.landing.complete(received)

    def Cancel(self) -> None:
        """Cancel the receive unless its message has come. As mpi4py's `Cancel`."""
        if self._received is None:
            super().Cancel()


class _LastingLanding(HostLanding):
    """The landing of each message that the request receives."""

    def complete(self, status: MPI.Status) -> None:
        """Wait for the data of a message that MPI has received with this status, and set the status."""
        if self._find(status):
            fetch, self.fetch = self.fetch, None
            if fetch is not None:
                fetch.finish(status)


def receive_init(comm: MessageBase, request: Prequest, buf: Any) -> HostReceivePrequest:
    """Return a persistent receive of mpi4py's as one that brings the data of device arrays' messages."""
    checked = HostReceivePrequest(request)
    checked._event = request._event
    checked.landing = landing_of(comm, buf, _LastingLanding)
    return checked
