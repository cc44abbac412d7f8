"""The host array into which MPI receives a message, which may be an envelope.

Every call that completes the request of the receive looks for an envelope in the array.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from mpi4py import MPI

from mpi_bootstrap import interrupts_deferred
from mpi_bootstrap.own_errors import own_errors_suppressed

from ...arrays import places
from ...requests.host_receive import HostReceive
from ...requests.open_receives import LOCK
from ...system import driver
from ...system.mpi_library import mpi_is_gone
from ...team.base import Base
from ..base import MessageBase
from ..envelope import (
    EAGER,
    EMPTY,
    ENVELOPE_NBYTES,
    INLINE,
    OFFERED,
    SHORT_NBYTES,
    STEP_NBYTES,
    WINDOW,
    may_be_envelope,
)
from ..probe import ProbedMessage
from ..progress.pending_sends import Follows
from .dropped import LASTING, DroppedReceive, follow_dropped
from .fetch import HostFetch, complete
from .memory import HostMemory, memory_of

_BYTE = MPI.BYTE
# Transports of messages that are whole as soon as their envelope is.
_LONG, _WHOLE = (OFFERED, WINDOW), (EMPTY, EAGER, OFFERED, WINDOW)
_ALL = *_WHOLE, INLINE
_RESTS = ENVELOPE_NBYTES % STEP_NBYTES, SHORT_NBYTES % STEP_NBYTES


class _Left(NamedTuple):
    """A receive whose request the program has freed; see `progress.Kept`."""

    request: HostReceive
    nbytes: int = 0

    def has_ended(self) -> bool:
        is_over = True
        try:
            is_over = self.request.Test()
        finally:
            if is_over and self.request:  # a persistent one
                self.request.Free()
        return is_over


class HostLanding(Follows):
    """The memory of a nonblocking receive into a host array.

    It is a weak reference to a view of the array. mpi4py holds the view until the request is complete. If one of
    mpi4py's own calls, such as its `Waitall`, completes the request, mpi4py destroys the view, and the callback of the
    weak reference fetches the data. In this case mpi4py's status has the length of the envelope.

    Attributes
    ----------
    is_claimed : bool
        Whether a method of the request examines the memory, so that the callback need not.
    fetch : HostFetch or None
        Fetch of the data, once an envelope was found. Changed under LOCK, and not before the envelope is replaced.
    """

    # A receive sets only these slots. Only envelopes and probed messages need other attributes.
    __slots__ = ("__dict__", "_buf", "_comm", "is_claimed")
    _buf: Any
    _comm: MessageBase
    is_claimed: bool
    fetch: HostFetch | None = None
    _memory: HostMemory | None = None
    _probed: ProbedMessage | None = None
    _dropped: DroppedReceive | None = None

    def is_complete(self, status: MPI.Status) -> bool:
        """Return whether the data of a message that MPI has received is complete.

        `status` is MPI's; it is set to the length of fetched data.
        """
        # The length excludes nearly all other messages, without `_find`.
        if status.Get_count(_BYTE) % STEP_NBYTES not in _RESTS:
            return True
        if status.Get_error() != MPI.SUCCESS:
            return True
        fetch = self._find(status)
        if fetch is None:
            return True
        if not fetch.is_over():
            return False
        fetch.fill(status)
        return True

    def complete(self, status: MPI.Status) -> None:
        """Wait for the data of a message that MPI has received, and set its status."""
        if status.Get_count(_BYTE) % STEP_NBYTES in _RESTS and self._find(status) is not None:
            # As in MPI, a signal handler's exception is raised after the data has arrived.
            with interrupts_deferred(to_the_end=True):
                self._finish(status)
            return
        self._buf = None
        if self._memory is not None:
            self._memory = None

    def set_origin(self, status: MPI.Status) -> None:
        """Set the source and tag of a message that a probe has found and sent again."""
        if self._probed is not None:
            self._probed.set_origin(status)

    @property
    def may_have_envelope(self) -> bool:
        """Whether a device array's message may arrive."""
        return isinstance(self._comm, Base) and (places.host_arrays() or driver.is_there())

    def keep(self, request: HostReceive) -> None:
        """Complete the request after its message arrives, although no call waits for it."""
        self.is_claimed = True
        self._comm.lasting_endpoint.context.receives.pending_sends.keep_message(_Left(request))

    def drop(self, handle: int) -> None:
        """Continue the receive of a dropped request; see `DroppedReceive`.

        `handle` is MPI's handle of the request. Destructors call this.
        """
        if mpi_is_gone() or not self.may_have_envelope:
            return
        self._dropped = DroppedReceive(self, handle)
        # Otherwise `end` calls `follow_dropped`, once no copy of the request holds the view.
        if self.is_claimed or self() is LASTING:
            follow_dropped(self._dropped)

    def has_envelope(self) -> bool:
        """Return whether the memory begins with an envelope."""
        return self._examine() is not None

    def fetch_if_ready(self, *, is_received: bool) -> bool:
        """Fetch the data of a message; return False if it is not ready.

        `is_received` is False if MPI may not have received the data behind the envelope.
        """
        fetch = self._examine(_ALL if is_received else _WHOLE)
        if (fetch is None and not is_received) or (fetch is not None and not fetch.is_over()):
            return False
        self._finish(None)
        return True

    def abandon(self) -> None:
        """Read data that no call will fetch, so that the sender can reuse its memory."""
        # No call is left that could raise an error. Under the lock no thread begins a second fetch of the envelope.
        with own_errors_suppressed(), LOCK:
            fetch = self._examine()
            if fetch is not None:
                fetch.abandon()
                self.fetch = None

    def go_on(self) -> None:
        """Begin to fetch a long message before a call completes it: the sender may wait."""
        # Ignore errors here: the call that completes the request raises them.
        with own_errors_suppressed():
            fetch = self._examine(_LONG)
            if fetch is not None:
                fetch.is_over()

    def _find(self, status: MPI.Status) -> HostFetch | None:
        """Return the fetch of a message's data; None if MPI has received no envelope."""
        self.set_origin(status)
        return self._examine() if may_be_envelope(status.Get_count(_BYTE)) else None

    def _examine(self, transports: Collection[int] = _ALL) -> HostFetch | None:
        """Return the fetch of the data whose envelope is in the memory.

        Return None if the memory has no envelope of one of these transports. Another thread may end the fetch, and set
        `fetch` to None, as soon as this returns.
        """
        with LOCK:
            buf = self._buf
            # There is nothing to fetch: the receive is complete, or its communicator is mpi4py's.
            if buf is None or not isinstance(self._comm, Base):
                return None
            memory = self._memory = memory_of(buf) if self._memory is None else self._memory
            envelope = memory.envelope()
            if envelope is None or envelope.transport not in transports:
                return None
            if self.fetch is None or not self.fetch.is_of(envelope):
                self.fetch = HostFetch(self._comm, memory, envelope)
            return self.fetch

    def _finish(self, status: MPI.Status | None) -> None:
        self._finish_fetch(status)
        self._memory = self._buf = None

    def _finish_fetch(self, status: MPI.Status | None) -> None:
        """Finish the fetch, if any."""
        fetch = self.fetch
        if fetch is None:
            return
        try:
            complete(fetch, status)
        finally:
            with LOCK:
                if self.fetch is fetch:
                    self.fetch = None

    @staticmethod
    def end(landing: HostLanding) -> None:
        """Fetch the data when mpi4py releases the view, if no method of the request does.

        At that time MPI has completed the request, or the program has dropped it.
        """
        if landing.is_claimed or mpi_is_gone():
            return
        if landing._dropped is not None:
            follow_dropped(landing._dropped)
            return
        landing._examine()
        landing._finish(None)
