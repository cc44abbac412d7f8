"""Receives of host arrays, which are mpi4py's: what to do when the message turns out to be a device array's.

MPI has then received an envelope. It is found by its beginning, in one place: `HostLanding` of a nonblocking receive,
which all ways to complete the request ask, and `_fetched` for a blocking one.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from mpi4py import MPI

from ..errors import MPIError, NotSupported
from ..recovery.meetings import raise_explained
from ..requests.host_receive import HostReceiveRequest
from ..requests.open_receives import LOCK
from ..team.base import Base
from .envelope import (
    ENVELOPE_NBYTES,
    LETTER,
    LETTER_NBYTES,
    OFFERED,
    STEP_NBYTES,
    WINDOW,
    inline_nbytes,
    may_be_envelope,
)
from .host_fetch import HostFetch
from .host_memory import HostMemory, has_own_datatype, memory_of
from .probe import ProbedMessage
from .unsent import Follows, follow, going_on

if TYPE_CHECKING:
    from .base import MessageBase

_Kind = TypeVar("_Kind", bound="HostLanding")
_BYTE = MPI.BYTE
_REST_NBYTES = ENVELOPE_NBYTES % STEP_NBYTES
_MAX_EXTRA_NBYTES = inline_nbytes(1) - 1  # that a message with a device array's data may be longer than the data


def receive(
    comm: MessageBase, call: Callable[..., None], arguments: tuple[Any, ...], recvbuf: Any, status: MPI.Status | None
) -> None:
    """Receive into a host array by mpi4py's ``call(*arguments, status)``; bring the data of a device array's message.

    `recvbuf` is the array among the arguments, of which the last are source and tag.
    """
    status = MPI.Status() if status is None else status
    try:
        call(*arguments, status)
    except MPI.Exception as error:
        raise_refused(comm, error, call.__name__)
    examine(comm, call, arguments, recvbuf, status)


def raise_refused(comm: MessageBase, error: MPI.Exception, operation: str) -> NoReturn:
    """Raise what a receive of a host array is to raise for MPI's exception."""
    if error.Get_error_class() != MPI.ERR_TRUNCATE:
        raise_explained(comm, error, operation)
    text = f"a message longer than the buffer (if a device array was sent, of {_MAX_EXTRA_NBYTES} bytes more, and "
    raise MPIError(MPI.ERR_TRUNCATE, f"{text}its data may be lost: receive it into a device array)") from error


def examine(
    comm: MessageBase, call: Callable[..., None], arguments: tuple[Any, ...], recvbuf: Any, status: MPI.Status
) -> None:
    """Bring the data if mpi4py's call has received the envelope of a device array's message."""
    # A communicator of mpi4py's comes here by MPI.Comm.Recv(comm, array).
    if may_be_envelope(status.Get_count(_BYTE)) and isinstance(comm, Base):
        memory = memory_of(recvbuf)
        envelope = memory.envelope()
        if envelope is not None and envelope.transport == LETTER:
            _deliver(comm, memory, status)
            # The call itself might send again.
            receive(comm, MPI.Comm.Recv, (comm, recvbuf, *arguments[-2:]), recvbuf, status)
        elif envelope is not None:
            HostFetch(comm, memory, envelope).finish(status)


def _deliver(comm: MessageBase, memory: HostMemory, status: MPI.Status) -> None:
    """Hand over a letter that has come to a receive of any tag, whose message is still to come."""
    comm.endpoint.partitioned.letters.deliver(status.source, memory.read(LETTER_NBYTES).tobytes())
    memory.replace(LETTER_NBYTES, memory.read(0))


class HostLanding(Follows):
    """What is examined when a nonblocking receive of a host array ends: whether an envelope is in its memory.

    It refers to the view of the array that mpi4py holds until the request is complete. So where none of the request's
    own methods completes it but mpi4py's `Waitall`, say, the end of the view brings the data; only the length in
    mpi4py's status is then the envelope's.

    Attributes
    ----------
    is_claimed : bool
        Whether a method of the request examines the memory.
    fetch : HostFetch or None
        Of the data, once an envelope was found.
    """

    # Only the slots are set in every receive; the others have a value where an envelope or a probed message is.
    __slots__ = ("__dict__", "_buf", "_comm", "is_claimed")
    _buf: Any
    _comm: MessageBase
    is_claimed: bool
    fetch: HostFetch | None = None
    _memory: HostMemory | None = None
    _probed: ProbedMessage | None = None
    _start: Callable[[], MPI.Request] | None = None  # begins the receive again, and no send

    def is_complete(self, status: MPI.Status) -> bool:
        """Whether all data is there, of a message that MPI has received with this status; sets the status if so."""
        if status.Get_count(_BYTE) % STEP_NBYTES != _REST_NBYTES:  # at once what `_find` finds out of nearly all
            return True
        if status.Get_error() != MPI.SUCCESS or not self._find(status):
            return True
        assert self.fetch is not None
        if not self.fetch.is_over():
            return False
        self.fetch.fill(status)
        return True

    def complete(self, status: MPI.Status) -> None:
        """Wait for the data of a message that MPI has received with this status, and set the status."""
        if status.Get_count(_BYTE) % STEP_NBYTES == _REST_NBYTES and self._find(status):
            assert self.fetch is not None
            self._finish(status)
            return
        self._buf = None
        if self._memory is not None:
            self._memory = None

    def go_on(self) -> None:
        """Fetch the data of a long message, for which its sender may wait, before MPI is asked for it."""
        with suppress(Exception):  # the call that completes the request raises it
            if self._examine(only_long=True) and self.fetch is not None:
                self.fetch.is_over()

    def _find(self, status: MPI.Status) -> bool:
        """Look for an envelope in a message that MPI has received."""
        if self._probed is not None:
            self._probed.set_origin(status)
        while may_be_envelope(status.Get_count(_BYTE)):
            if not self._examine():
                return False
            if self.fetch is not None:
                return True
            self._receive_again(status)
        return False

    def _receive_again(self, status: MPI.Status) -> None:
        """Receive the message of the program's after a letter, which has come to a receive of any tag."""
        assert self._memory is not None
        _deliver(self._comm, self._memory, status)
        if self._start is None:
            raise NotSupported(
                "Irecv: a letter of Precv_init or Psend_init has come, for it takes any tag; name the tag"
            )
        self._start().Wait(status)

    def _examine(self, *, only_long: bool = False) -> bool:
        """Look for an envelope in the memory, and prepare to fetch the data that it describes."""
        with LOCK:
            buf = self._buf
            if buf is None or not isinstance(self._comm, Base):  # over, or a communicator of mpi4py's
                return False
            memory = self._memory = memory_of(buf) if self._memory is None else self._memory
            envelope = memory.envelope()
            if envelope is None or (only_long and envelope.transport not in (OFFERED, WINDOW)):
                return False
            if envelope.transport != LETTER and (self.fetch is None or not self.fetch.is_of(envelope)):
                self.fetch = HostFetch(self._comm, memory, envelope)
            return True

    def _finish(self, status: MPI.Status | None) -> None:
        fetch, self.fetch, self._memory, self._buf = self.fetch, None, None, None
        if fetch is not None:
            fetch.finish(status)

    @staticmethod
    def end(landing: HostLanding) -> None:
        """Bring the data, unless the request's own method does: MPI has completed it, or the program has dropped it."""
        if not landing.is_claimed:
            landing._examine()
            landing._finish(None)


def landing_of(comm: MessageBase, buf: Any, kind: type[_Kind]) -> _Kind:
    """Make the landing of a receive whose memory mpi4py holds for good."""
    landing = kind(_LASTING)
    landing._comm, landing._buf, landing.is_claimed = comm, buf, False
    if has_own_datatype(buf):
        landing._memory = memory_of(buf, is_kept=True)
    return landing


_end = HostLanding.end
_LASTING = memoryview(b"")  # in the place of a view, of what exports no memory


def ireceive(
    comm: MessageBase,
    start: Callable[[Any], MPI.Request],
    buf: Any,
    probed: ProbedMessage | None = None,
    again: Callable[[Any], MPI.Request] | None = None,
) -> MPI.Request:
    """Begin to receive into a host array by ``start(buf)``, which is mpi4py's; if that sends, too, `again` does not."""
    spec, view = _viewed(buf)
    request = HostReceiveRequest(start(spec))
    request.landing = landing = HostLanding(view, HostLanding.end)
    landing._comm, landing._buf, landing.is_claimed, landing._probed = comm, buf, False, probed
    landing._start = lambda: (again or start)(buf)
    if has_own_datatype(buf):
        landing._memory = memory_of(buf, is_kept=True)
    if view is _LASTING:
        return going_on(request)
    follow(landing)
    return request


def ireceive_plain(
    comm: MessageBase, start: Callable[..., MPI.Request], array: Any, source: int, tag: int
) -> MPI.Request:
    """Begin to receive into a NumPy array by ``start(comm, array, source, tag)``, which is mpi4py's."""
    try:
        view = memoryview(array)
        request = HostReceiveRequest(start(comm, view, source, tag))
    except (TypeError, ValueError, BufferError):
        return start(comm, array, source, tag)  # which raises what mpi4py raises
    request.landing = landing = HostLanding(view, _end)
    landing._comm, landing._buf, landing.is_claimed = comm, array, False
    follow(landing)
    return request


def _viewed(buf: Any) -> tuple[Any, memoryview]:
    """Return a buffer argument with a view in the place of the array, and the view."""
    is_spec = isinstance(buf, (list, tuple)) and len(buf) > 0
    try:
        view = memoryview(buf[0] if is_spec else buf)
    except (TypeError, ValueError, BufferError):
        return buf, _LASTING
    if view.readonly or not view.contiguous:  # mpi4py refuses it
        return buf, _LASTING
    return (type(buf)((view, *buf[1:])) if is_spec else view), view
