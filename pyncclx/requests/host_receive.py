"""Requests of receives of host arrays, whose message may turn out to be a device array's."""

from __future__ import annotations

from typing import Any, Literal, Protocol

from mpi4py import MPI

from .status import fill_empty, has_ended

_wait = MPI.Request.Wait
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
        self.finish(MPI.Status() if status is None else status)
        return True

    def finish(self, status: MPI.Status) -> None:
        """Wait for the message, and set the status."""
        landing = self.landing
        landing.is_claimed = True
        _wait(self, status)
        landing.complete(status)

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Whether the message has come, with its data; if so, complete the request. As mpi4py's `Test`."""
        return self.test_active(status) is not False

    def test_active(self, status: MPI.Status | None) -> bool | None:
        """Complete the request if the message has come with its data, and return whether; None if nothing is active."""
        if status is None:
            status = MPI.Status()
        has_come = self.has_come(status)
        if has_come and self.landing.is_complete(status):
            self.finish_received(status)
            return True
        return None if has_come is None else False

    def has_come(self, status: MPI.Status) -> bool | None:
        """Return whether MPI has received the message, and set the status if so; None if nothing is active."""
        if self:
            return has_ended(self, status)
        fill_empty(status)
        return None

    def finish_received(self, status: MPI.Status) -> None:
        """Do what `finish` does when the status has just been set."""
        self.finish(status)

    def Get_status(self, status: MPI.Status | None = None) -> bool:
        """Whether the message has come, with its data; the request stays. As mpi4py's `Get_status`."""
        if status is None:
            status = MPI.Status()
        has_come = self.has_come(status)
        return has_come is None or (has_come and self.landing.is_complete(status))

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
