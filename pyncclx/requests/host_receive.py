"""Requests of receives into host arrays, to which a peer may send a device array."""

from __future__ import annotations

from typing import Any, Literal, Protocol

from mpi4py import MPI

from .shown import handle_of, set_handle
from .status import fill_empty, has_ended

_wait = MPI.Request.Wait
#: The first bytes of every envelope. Other data begins with them with probability 2**-128.
ENVELOPE_MAGIC = bytes.fromhex("f0b1c6e59d3a4e8c9e21d47a7d05c3ab")


class Landing(Protocol):
    """The memory that MPI receives a host array into, checked for an envelope.

    Attributes
    ----------
    is_claimed : bool
        Whether a method of the request examines the message. If not, it is examined when mpi4py ends the request.
    """

    is_claimed: bool

    def is_complete(self, status: MPI.Status) -> bool:
        """Return whether all data of a message that MPI has received is in the array.

        If so, set the status, which MPI's receive has filled in.
        """

    def complete(self, status: MPI.Status) -> None:
        """Wait for the data of a message that MPI has received, and set its status."""

    @property
    def may_have_envelope(self) -> bool:
        """Whether a device array's message may arrive."""

    def keep(self, request: HostReceiveRequest) -> None:
        """Complete a request that no call completes, once its message has come."""

    def abandon(self) -> None:
        """Read the data that no call will fetch, so that its sender can reuse its memory."""


class HostReceive(MPI.Request):
    """A receive into a host array. Its completion replaces an envelope by the data.

    Attributes
    ----------
    landing : Landing
    """

    landing: Landing

    def Wait(self, status: MPI.Status | None = None) -> Literal[True]:
        """Wait for the message and its data. As mpi4py's `Wait`."""
        if not self:
            return _wait(self, status)
        self.finish(MPI.Status() if status is None else status)
        return True

    def finish(self, status: MPI.Status) -> None:
        """Wait for the message and its data, and set the status."""
        landing = self.landing
        landing.is_claimed = True
        try:
            _wait(self, status)
            landing.complete(status)
        except BaseException:
            landing.abandon()
            raise

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Complete the request if its data has arrived; return whether it has.

        As mpi4py's `Test`.
        """
        return self.test_active(status) is not False

    def test_active(self, status: MPI.Status | None) -> bool | None:
        """Complete the request if its data has arrived; return whether it has.

        Return None if the request is inactive.
        """
        if status is None:
            status = MPI.Status()
        has_come = self.has_come(status)
        if has_come and self.landing.is_complete(status):
            self.finish_received(status)
            return True
        return None if has_come is None else False

    def has_come(self, status: MPI.Status) -> bool | None:
        """Return whether MPI has received the message, and set the status if so.

        Return None if the request is inactive.
        """
        if self:
            return has_ended(self, status)
        fill_empty(status)
        return None

    def finish_received(self, status: MPI.Status) -> None:
        """Complete a request whose status `has_come` has just set."""
        self.finish(status)

    def Get_status(self, status: MPI.Status | None = None) -> bool:
        """Return whether the data has arrived, without completing the request.

        As mpi4py's `Get_status`.
        """
        if status is None:
            status = MPI.Status()
        has_come = self.has_come(status)
        return has_come is None or (has_come and self.landing.is_complete(status))

    def get_status(self, status: MPI.Status | None = None) -> bool:
        """Return whether the data has arrived, without completing the request."""
        return self.Get_status(status)

    def wait(self, status: MPI.Status | None = None) -> Any:
        """Wait for the message and its data; return None because there is no object."""
        self.Wait(status)

    def test(self, status: MPI.Status | None = None) -> tuple[bool, Any]:
        """Complete the request if its data has arrived; return whether it has, and None."""
        return self.Test(status), None


class HostReceiveRequest(HostReceive):
    """The request of one receive."""

    def Free(self) -> None:
        """Free the request. As mpi4py's `Free`. A message that is under way completes."""
        if not (self and self.landing.may_have_envelope):
            super().Free()
            return
        left = HostReceiveRequest(self)
        left.landing = self.landing
        left.landing.keep(left)
        set_handle(self, handle_of(MPI.REQUEST_NULL))
