"""Persistent receives into host arrays, whose message may be a device array's."""

from __future__ import annotations

from typing import Any, cast

from mpi4py import MPI

from ...errors import MPIError, NotSupported
from ...requests.host_receive import HostReceive
from ...requests.open_receives import LOCK
from ...requests.shown import handle_of, set_handle
from ...requests.status import copy_status, fill_empty
from ...staging.requests import Prequest
from ...system.mpi_library import mpi_is_gone
from ...team.base import Base
from ..base import MessageBase
from ..progress.pending_sends import follow
from .dropped import LASTING, DroppedReceive, follow_dropped
from .landing import HostLanding
from .memory import ScatteredMemory, has_own_datatype, memory_of

_test = MPI.Request.Test


class HostReceivePrequest(HostReceive, Prequest):
    """The request of `Recv_init` with a host array.

    MPICH completes a persistent request when its status is queried. So this request lets MPI complete it, keeps status
    and error, and stays active until the program completes it.

    mpi4py's own calls, such as its `Waitall`, call no method of a persistent request. They leave the envelope of a
    device array's message in the memory, where the next method of the inactive request finds it.
    """

    landing: _LastingLanding
    _received: MPI.Status | None = None  # status of a message that the program has not completed
    _error: MPI.Exception | None = None  # error of that message

    def __new__(cls, request: MPI.Prequest) -> HostReceivePrequest:
        """Return a request with the handle of mpi4py's request."""
        return MPI.Request.__new__(cls, request)

    def prepare(self) -> None:
        """Check that the last message was completed; mark the receive as started.

        Raises
        ------
        MPI.Exception
            Class ERR_REQUEST, if a message has arrived that the program has not completed.
        NotSupported
            If one of mpi4py's own calls has completed the last message, which was a device array's.
        """
        if self._received is not None or self.landing.has_envelope():
            come = self._look(MPI.Status())
            if come:
                raise MPIError(MPI.ERR_REQUEST, "Start: the request is active; Wait for it first")
            if come is None and self.landing.has_envelope():
                self.landing.end_late()
        self.landing.start()

    def has_come(self, status: MPI.Status) -> bool | None:
        """Return whether MPI has received the message; None if the request is inactive.

        Set the status if the message has arrived. If an inactive request's memory has an envelope, fetch the data and
        raise NotSupported.
        """
        come = self._look(status)
        if come is None:
            self.landing.end_inactive()
        return come

    def _look(self, status: MPI.Status) -> bool | None:
        """Test whether MPI has received the message; None if the request is inactive.

        Set the status if the message has arrived.
        """
        if self._received is None:
            self._test()
        received = self._received
        if received is None:
            return False
        copy_status(status, received)
        if self._error is not None:
            status.Set_error(self._error.Get_error_code())
        elif status.source == MPI.ANY_SOURCE and not status.Is_cancelled():
            # MPI returns an empty status if the request was inactive.
            self._received = None
            return None
        return True

    def _test(self) -> None:
        """Keep the status and the error if MPI completes the request."""
        found = MPI.Status()
        try:
            # With `map`, Python runs no signal handler between MPI's return and the last assignment.
            (has_ended,) = map(_test, (self,), (found,))
            if has_ended:
                self._received = found
        except MPI.Exception as error:
            self._received, self._error = found, error

    def finish(self, status: MPI.Status) -> None:
        """Wait for the message, and set the status."""
        received = self._received
        if received is None:
            fill_empty(status)
            super().finish(status)
            # MPI returns an empty status if the request was inactive.
            if status.source == MPI.ANY_SOURCE and not status.Is_cancelled():
                self.landing.end_inactive()
        else:
            try:
                self.finish_received(status)
            except BaseException as error:
                self._received = self._error = None
                self.end_interrupted(received, error)
                raise
            finally:
                copy_status(status, received)

    def has_received(self, status: MPI.Status) -> bool:
        return status.source != MPI.ANY_SOURCE

    def finish_received(self, status: MPI.Status) -> None:
        """Raise the error of the message that `has_come` found, or wait for its data."""
        received, self._received = cast(MPI.Status, self._received), None
        error, self._error = self._error, None
        if error is not None:
            raise error
        self.landing.complete(received)

    def Cancel(self) -> None:
        """Cancel the receive unless its message has arrived, like mpi4py's `Cancel`."""
        if self._received is None:
            super().Cancel()

    def Free(self) -> None:
        """Free the request; its message still completes, like mpi4py's `Free`."""
        if self and self.landing.may_have_envelope and self._look(MPI.Status()) is not None:
            left = HostReceivePrequest(self)
            left.landing, left._received, left._error = self.landing, self._received, self._error
            self.landing, self._received = self.landing.ended(), None
            left.landing.keep(left)
            set_handle(self, handle_of(MPI.REQUEST_NULL))
            return
        try:
            if self:
                self.landing.end_inactive()
        finally:
            self.landing.is_active = False
            super().Free()

    def __del__(self) -> None:
        landing = getattr(self, "landing", None)
        # Only a request made by `receive_init` has a landing.
        if landing is None:
            return
        was_active, landing.is_active = landing.is_active, False
        if not self or mpi_is_gone():
            return
        has_envelope = landing.is_plain and landing.has_envelope()
        if was_active or has_envelope:
            follow_dropped(DroppedReceive(landing, handle_of(self)))
        if has_envelope and self._look(MPI.Status()) is None:
            # In a destructor, Python prints the exception.
            raise NotSupported(_LATE)


_LATE = (
    "Recv_init: the array had the description of a device array's message in the place of its data, since a call of "
    "mpi4py's own, such as MPI.Request.Waitall, has completed the request; call Wait or Test of the request, or "
    "pyncclx.Request.Waitall and its relatives"
)


class _LastingLanding(HostLanding):
    """The landing of all messages that the request receives.

    Attributes
    ----------
    is_active : bool
        True from the start to the end of a receive, while MPI progresses it.
    """

    is_active = False
    _is_followed = False

    def ended(self) -> _LastingLanding:
        """Return a landing for the request after it has been freed."""
        landing = _LastingLanding(LASTING)
        landing._comm, landing._buf, landing.is_claimed = self._comm, None, True
        return landing

    def start(self) -> None:
        """Mark the receive as active, and have the monitor thread progress it."""
        with LOCK:
            self.is_active = True
            if not self._is_followed:
                self._is_followed = True
                follow(self)

    @property
    def is_under_way(self) -> bool:
        """Whether a receive has been started and is not complete."""
        self._is_followed = self.is_active
        return self.is_active

    def go_on(self) -> None:
        """Fetch the data of a long message, if the receive is under way."""
        if self.is_active:
            super().go_on()

    @property
    def is_plain(self) -> bool:
        """Whether the memory can be read without a call of MPI."""
        return not isinstance(self._memory, ScatteredMemory)

    def has_envelope(self) -> bool:
        """Return whether the memory begins with an envelope."""
        # Receives from MPI.PROC_NULL and on mpi4py's communicators get no envelopes.
        if self._buf is None or not isinstance(self._comm, Base):
            return False
        if self._memory is None:
            self._memory = memory_of(self._buf)
        return self._memory.envelope() is not None

    def complete(self, status: MPI.Status) -> None:
        """Wait for the data of a message that MPI has received, and set its status."""
        if self._find(status):
            self._end(status)
        elif status.source != MPI.ANY_SOURCE or status.Is_cancelled():
            self.is_active = False

    def end_inactive(self) -> None:
        """Mark the request as inactive; if it has an envelope, call `end_late`."""
        if (self.is_plain or self.is_active) and self.has_envelope():
            self.end_late()
        self.is_active = False

    def end_late(self) -> None:
        """Fetch the data of a message that mpi4py itself completed; raise NotSupported."""
        self._examine()
        self._end(None)
        raise NotSupported(_LATE)

    def _end(self, status: MPI.Status | None) -> None:
        try:
            self._finish_fetch(status)
        finally:
            self.is_active = False


def receive_init(comm: MessageBase, request: Prequest, buf: Any) -> HostReceivePrequest:
    """Wrap mpi4py's persistent receive, so that it can also receive device arrays."""
    landing = _landing_of(comm, buf)
    checked = HostReceivePrequest(request)
    checked.landing, checked._event = landing, request._event
    return checked


def _landing_of(comm: MessageBase, buf: Any) -> _LastingLanding:
    """Create the landing of a persistent receive, whose memory mpi4py always holds."""
    landing = _LastingLanding(LASTING)
    landing._comm, landing._buf, landing.is_claimed = comm, buf, False
    if has_own_datatype(buf):
        landing._memory = memory_of(buf, is_kept=True)
    return landing
