"""Persistent receives of host arrays, which are mpi4py's: what comes may be a device array's message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from ..requests.host_receive import HostReceive
from ..staging.requests import Prequest
from .host_receive import HostLanding, landing_of

if TYPE_CHECKING:
    from .base import MessageBase


class HostReceivePrequest(HostReceive, Prequest):
    """The request of `Recv_init`. mpi4py's own calls for many leave an envelope in the array."""


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
