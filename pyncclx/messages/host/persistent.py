"""Persistent host receives by mpi4py, whose message may be a device array's."""

from __future__ import annotations

from typing import Any, cast

from mpi4py import MPI

from ...errors import MPIError, NotSupported
from ...requests.host_receive import HostReceive
from ...requests.open_receives import LOCK
from ...requests.status import copy_status
from ...staging.requests import Prequest
from ...system.mpi_library import mpi_is_gone
from ...team.base import Base
from ..base import MessageBase
from ..progress.polling import PROGRESS
from ..progress.unsent import OF_PROCESS, follow
from .fetch import complete
from .landing import HostLanding
from .memory import ScatteredMemory, has_own_datatype, memory_of
from .receive import LASTING

_test = MPI.Request.Test


class HostReceivePrequest(HostReceive, Prequest):
    """The request of `Recv_init` with a host array.

    MPICH completes a persistent request when asked for its status. So this request lets MPI complete it, keeps status
    and error, and stays active until the program completes it.

    mpi4py's own calls, such as its `Waitall`, call no method of a persistent request. They leave the envelope of a
    device array's message in the memory, where the next method of the inactive request finds it.
    """

    landing: _LastingLanding
    _received: MPI.Status | None = None  # status of a message that the program has not completed
    _error: MPI.Exception | None = None  # error of that message

    def prepare(self) -> None:
        """Check that the last message was completed; note that the receive starts.

        Raises
        ------
        MPI.Exception
            Class ERR_REQUEST: a message has arrived that the program has not completed.
        NotSupported
            A call of mpi4py's own has completed the last message, which was a device array's.
        """
        if self._received is None and self.landing.has_envelope() and self._look(MPI.Status()) is None:
            self.landing.end_late()
        if self._received is not None:
            raise MPIError(MPI.ERR_REQUEST, "Start: the request is active; Wait for it first")
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
            # MPI returns an empty status if the request was inactive.
            if status.source == MPI.ANY_SOURCE and not status.Is_cancelled():
                self.landing.end_inactive()
        else:
            try:
                self.finish_received(status)
            finally:
                copy_status(status, received)

    def finish_received(self, status: MPI.Status) -> None:
        """Raise the error of the message that `has_come` found, or wait for its data."""
        received, self._received = cast(MPI.Status, self._received), None
        error, self._error = self._error, None
        if error is not None:
            raise error
        self.landing.complete(received)

    def Cancel(self) -> None:
        """Cancel the receive unless its message has arrived. As mpi4py's `Cancel`."""
        if self._received is None:
            super().Cancel()

    def Free(self) -> None:
        """Free the request. As mpi4py's `Free`."""
        try:
            status = MPI.Status()
            if self and self.landing.has_envelope() and self.has_come(status):
                self.finish_received(status)
        finally:
            self.landing.is_active = False
            super().Free()

    def __del__(self) -> None:
        landing = getattr(self, "landing", None)
        # A request that was not made by `receive_init` has no landing.
        if landing is None:
            return
        landing.is_active = False
        if self and not mpi_is_gone() and landing.is_plain and landing.has_envelope():
            if PROGRESS.made is not None:
                PROGRESS.made.unsent.dropped.append(landing)
            # Python prints exceptions of destructors.
            raise NotSupported(_LATE)


_LATE = (
    "Recv_init: the array had the description of a device array's message in the place of its data, since a call of "
    "mpi4py's own, such as MPI.Request.Waitall, has completed the request; call Wait or Test of the request, or "
    "pyncclx.Request.Waitall and its relatives"
)


class _LastingLanding(HostLanding):
    """The landing of each message that the request receives.

    Attributes
    ----------
    is_active : bool
        True from the start to the end of a receive, while MPI progresses it.
    """

    is_active = False
    _is_followed = False

    def start(self) -> None:
        """Mark the receive as active, and let the monitor thread progress it."""
        with LOCK:
            self.is_active = True
            if not self._is_followed and OF_PROCESS:
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
        """Whether the memory begins with an envelope."""
        # Receives from MPI.PROC_NULL and of mpi4py's communicators have no envelopes.
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
        """Mark the request as inactive. If it has an envelope, act as `end_late`."""
        if (self.is_plain or self.is_active) and self.has_envelope():
            self.end_late()
        self.is_active = False

    def end_late(self) -> None:
        """Fetch the data of a message that mpi4py itself completed; raise NotSupported."""
        self._examine()
        self._end(None)
        raise NotSupported(_LATE)

    def _end(self, status: MPI.Status | None) -> None:
        with LOCK:
            self.is_active = False
            fetch, self.fetch = self.fetch, None
        if fetch is not None:
            complete(fetch, status)


def receive_init(comm: MessageBase, request: Prequest, buf: Any) -> HostReceivePrequest:
    """Wrap mpi4py's persistent receive, so that it can receive device arrays' data."""
    landing = _landing_of(comm, buf)
    checked = HostReceivePrequest(request)
    checked.landing, checked._event = landing, request._event
    return checked


def _landing_of(comm: MessageBase, buf: Any) -> _LastingLanding:
    """Make the landing of a persistent receive, whose memory mpi4py always holds."""
    landing = _LastingLanding(LASTING)
    landing._comm, landing._buf, landing.is_claimed = comm, buf, False
    if has_own_datatype(buf):
        landing._memory = memory_of(buf, is_kept=True)
    return landing
