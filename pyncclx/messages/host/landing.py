"""The memory that MPI receives a host array into.

Whatever call completes the request examines it for an envelope.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, NamedTuple

from mpi4py import MPI

from ...arrays import places
from ...requests.host_receive import HostReceiveRequest
from ...requests.open_receives import LOCK
from ...system import driver
from ...system.mpi_library import mpi_is_gone
from ...team.base import Base
from ..base import MessageBase
from ..envelope import ENVELOPE_NBYTES, OFFERED, STEP_NBYTES, WINDOW, may_be_envelope
from ..probe import ProbedMessage
from ..progress.unsent import Follows
from .fetch import HostFetch, complete
from .memory import HostMemory, memory_of

_BYTE = MPI.BYTE
_REST_NBYTES = ENVELOPE_NBYTES % STEP_NBYTES


class _Left(NamedTuple):
    """A kept receive whose request the program has freed; see `unsent.Kept`."""

    request: HostReceiveRequest
    nbytes: int = 0

    def has_ended(self) -> bool:
        return self.request.Test()


class HostLanding(Follows):
    """The memory of a nonblocking receive of a host array, examined for an envelope.

    It is a weak reference to the view of the array that mpi4py holds until the request is complete. When a call of
    mpi4py's own completes the request, such as its `Waitall`, the destruction of the view fetches the data. The length
    in mpi4py's status is then the envelope's.

    Attributes
    ----------
    is_claimed : bool
        Whether a method of the request examines the memory.
    fetch : HostFetch or None
        Fetch of the data, once an envelope was found.
    """

    # Every receive sets the slots only. Envelopes and probed messages need the other attributes.
    __slots__ = ("__dict__", "_buf", "_comm", "is_claimed")
    _buf: Any
    _comm: MessageBase
    is_claimed: bool
    fetch: HostFetch | None = None
    _memory: HostMemory | None = None
    _probed: ProbedMessage | None = None

    def is_complete(self, status: MPI.Status) -> bool:
        """Return whether the data of a message that MPI has received is complete.

        `status` is MPI's; it is set to the length of fetched data.
        """
        # Nearly all other messages are recognized by their lengths, without `_find`.
        if status.Get_count(_BYTE) % STEP_NBYTES != _REST_NBYTES:
            return True
        if status.Get_error() != MPI.SUCCESS:
            return True
        if not self._find(status):
            return True
        assert self.fetch is not None
        if not self.fetch.is_over():
            return False
        self.fetch.fill(status)
        return True

    def complete(self, status: MPI.Status) -> None:
        """Wait for the data of a message that MPI has received, and set its status."""
        if status.Get_count(_BYTE) % STEP_NBYTES == _REST_NBYTES and self._find(status):
            assert self.fetch is not None
            self._finish(status)
            return
        self._buf = None
        if self._memory is not None:
            self._memory = None

    @property
    def may_have_envelope(self) -> bool:
        """Whether a device array's message may arrive."""
        return isinstance(self._comm, Base) and (places.host_arrays() or driver.is_there())

    def keep(self, request: HostReceiveRequest) -> None:
        """Complete a request that no call completes, once its message has come."""
        self.is_claimed = True
        self._comm.endpoint.postbox.receives.unsent.keep_message(_Left(request))

    def abandon(self) -> None:
        """Read the data that no call will fetch, so that its sender can reuse its memory."""
        # No call is left that could raise an error.
        with suppress(Exception):
            if self._examine():
                assert self.fetch is not None
                fetch, self.fetch = self.fetch, None
                fetch.abandon()

    def go_on(self) -> None:
        """Begin to fetch a long message, whose sender may wait, before the program's call."""
        # The call that completes the request raises errors.
        with suppress(Exception):
            if self._examine(only_long=True):
                assert self.fetch is not None
                self.fetch.is_over()

    def _find(self, status: MPI.Status) -> bool:
        """Return whether MPI has received an envelope; prepare the fetch of its data."""
        if self._probed is not None:
            self._probed.set_origin(status)
        return may_be_envelope(status.Get_count(_BYTE)) and self._examine()

    def _examine(self, *, only_long: bool = False) -> bool:
        """Return whether the memory has an envelope; prepare the fetch of its data."""
        with LOCK:
            buf = self._buf
            # The receive is complete, or its communicator is mpi4py's.
            if buf is None or not isinstance(self._comm, Base):
                return False
            memory = self._memory = memory_of(buf) if self._memory is None else self._memory
            envelope = memory.envelope()
            if envelope is None or (only_long and envelope.transport not in (OFFERED, WINDOW)):
                return False
            if self.fetch is None or not self.fetch.is_of(envelope):
                self.fetch = HostFetch(self._comm, memory, envelope)
            return True

    def _finish(self, status: MPI.Status | None) -> None:
        fetch, self.fetch, self._memory, self._buf = self.fetch, None, None, None
        if fetch is not None:
            complete(fetch, status)

    @staticmethod
    def end(landing: HostLanding) -> None:
        """Fetch the data when mpi4py releases the view, unless a request's method does.

        MPI has then completed the request, or the program has dropped it.
        """
        if not (landing.is_claimed or mpi_is_gone()):
            landing._examine()
            landing._finish(None)
