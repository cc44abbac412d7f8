"""Requests of receives into host arrays, whose completion needs more than MPI.

A peer may send a device array to such a receive. MPI then receives an envelope, and the request fetches the data.
"""

from __future__ import annotations

from typing import Any, Literal

from mpi4py import MPI

from mpi_bootstrap import interrupts_deferred
from mpi_bootstrap.own_errors import own_errors_suppressed

from .shown import handle_of, set_handle
from .status import check_status, fill_empty, has_ended

_wait = MPI.Request.Wait
#: The first bytes of every envelope. Other data begins with them with probability 2**-128.
ENVELOPE_MAGIC = bytes.fromhex("f0b1c6e59d3a4e8c9e21d47a7d05c3ab")


class Undivided(MPI.Request):
    """Base class of requests that MPI alone cannot complete.

    The constructors of request classes return such a request itself, not a copy as for other requests.
    """


class HostReceive(Undivided):
    """A receive into a host array. Its completion replaces an envelope by the data.

    Attributes
    ----------
    landing : HostLanding
        The memory that MPI receives into (`messages/host/landing.py`).
    """

    landing: Any

    def Wait(self, status: MPI.Status | None = None) -> Literal[True]:
        """Wait for the message and its data, like mpi4py's `Wait`."""
        if not self:
            return _wait(self, status)
        if status is None:
            status = MPI.Status()
        else:
            check_status(status)
        self.finish(status)
        return True

    def finish(self, status: MPI.Status) -> None:
        """Wait for the message and its data, and set the status."""
        landing = self.landing
        landing.is_claimed = True
        # Keep the view alive: if MPI's call destroyed it, the landing's callback would run there, and Python would
        # print an exception that a signal handler raises in the callback instead of raising it.
        view = landing()  # noqa: F841
        try:
            _wait(self, status)
            landing.complete(status)
        except BaseException as error:
            self.end_interrupted(status, error)
            raise

    def end_interrupted(self, status: MPI.Status, error: BaseException) -> None:
        """End a receive after an exception.

        As in MPI, a signal handler's exception is raised after the data has been received.
        """
        landing = self.landing
        landing.set_origin(status)
        if not self.has_received(status):
            landing.is_claimed = False
        elif isinstance(error, MPI.Exception):
            landing.abandon()
        else:
            # The caller raises `error`, so suppress errors of the completion.
            with own_errors_suppressed():
                landing.complete(status)

    def has_received(self, status: MPI.Status) -> bool:
        """Return whether MPI has received a message; `status` is that of MPI's wait."""
        return not self

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Complete the request if its data has arrived; return whether it has.

        It works like mpi4py's `Test`.
        """
        return self.test_active(status) is not False

    def test_active(self, status: MPI.Status | None) -> bool | None:
        """Complete the request if its data has arrived; return whether it has.

        Return None if the request is inactive.
        """
        if status is None:
            status = MPI.Status()
        else:
            check_status(status)
        has_come = self.has_come(status)
        if has_come and self.landing.is_complete(status):
            if self.landing.fetch is None:
                self.finish_received(status)
            else:
                # The data has arrived, so this does not wait. Interrupts are deferred, because one here would lose the
                # data.
                with interrupts_deferred():
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

        It works like mpi4py's `Get_status`.
        """
        if status is None:
            status = MPI.Status()
        else:
            check_status(status)
        has_come = self.has_come(status)
        return has_come is None or (has_come and bool(self.landing.is_complete(status)))

    get_status = Get_status

    def wait(self, status: MPI.Status | None = None) -> Any:
        """Wait for the message and its data; return None because there is no object."""
        self.Wait(status)

    def test(self, status: MPI.Status | None = None) -> tuple[bool, Any]:
        """Complete the request if its data has arrived; return whether it has, and None."""
        return self.Test(status), None


class HostReceiveRequest(HostReceive):
    """The request of one receive."""

    landing: Any = None  # until the receive has begun

    def __del__(self) -> None:
        # The program has dropped the request of a receive that is not complete.
        if self and self.landing is not None:
            self.landing.drop(handle_of(self))

    def Free(self) -> None:
        """Free the request; its message still completes, like mpi4py's `Free`."""
        if not (self and self.landing.may_have_envelope):
            super().Free()
            return
        left = HostReceive(self)
        left.landing = self.landing
        left.landing.keep(left)
        set_handle(self, handle_of(MPI.REQUEST_NULL))
