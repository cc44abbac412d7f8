"""Requests of receives of host arrays, whose message may turn out to be a device array's."""

from __future__ import annotations

from typing import Any, Literal, Protocol

from mpi4py import MPI

_wait, _get_status = MPI.Request.Wait, MPI.Request.Get_status
#: Begins every envelope, and other data only by an accident of 2**-128.
ENVELOPE_MAGIC = bytes.fromhex("f0b1c6e59d3a4e8c9e21d47a7d05c3ab")


class Landing(Protocol):
    """What a message to a host array is taken from, once MPI has received it.

    Attributes
    ----------
    is_claimed : bool
        Whether a method of the request examines the message. If not, the end of the request in mpi4py does so.
    """

    is_claimed: bool

    def is_complete(self, status: MPI.Status) -> bool:
        """Whether all data is there, of a message that MPI has received with this status; sets the status if so."""

    def complete(self, status: MPI.Status) -> None:
        """Wait for the data of a message that MPI has received with this status, and set the status."""


class HostReceive(MPI.Request):
    """A receive of a host array: each way to complete it replaces an envelope by the data, once.

    Attributes
    ----------
    landing : Landing
    """

    landing: Landing

    def Wait(self, status: MPI.Status | None = None) -> Literal[True]:
        """Wait for the message. As mpi4py's `Wait`."""
        if not self:
            return _wait(self, status)
        if status is None:
            status = MPI.Status()
        landing = self.landing
        landing.is_claimed = True
        _wait(self, status)
        landing.complete(status)
        return True

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Whether the message has come, with its data; if so, complete the request. As mpi4py's `Test`."""
        if not self:
            return super().Test(status)
        if status is None:
            status = MPI.Status()
        landing = self.landing
        if not (_get_status(self, status) and landing.is_complete(status)):
            return False
        landing.is_claimed = True
        _wait(self, status)
        landing.complete(status)
        return True

    def Get_status(self, status: MPI.Status | None = None) -> bool:
        """Whether the message has come, with its data; the request stays. As mpi4py's `Get_status`."""
        if status is None:
            status = MPI.Status()
        return _get_status(self, status) and (not self or self.landing.is_complete(status))

    def get_status(self, status: MPI.Status | None = None) -> bool:
        """As `Get_status`."""
        return self.Get_status(status)

    def wait(self, status: MPI.Status | None = None) -> Any:
        """As `Wait`; return None, for there is no object."""
        self.Wait(status)

    def test(self, status: MPI.Status | None = None) -> tuple[bool, Any]:
        """As `Test`; the object is None."""
        return self.Test(status), None


class HostReceiveRequest(HostReceive):
    """The request of one receive."""
