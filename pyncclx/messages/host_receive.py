"""Receives of host arrays by mpi4py, whose message may be a device array's.

MPI then receives an envelope, which is recognized by its first bytes. `examine` checks blocking receives. `HostLanding`
checks nonblocking ones, for all calls that complete the request.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

from mpi4py import MPI

from ..errors import MPIError, NotSupported
from ..recovery.meetings import raise_explained
from ..requests.host_receive import HostReceiveRequest
from ..requests.open_receives import LOCK
from ..requests.status import copy_status
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
from .host_fetch import HostFetch, complete
from .host_memory import HostMemory, has_own_datatype, memory_of
from .probe import ProbedMessage
from .unsent import Follows, follow, going_on

if TYPE_CHECKING:
    from .base import MessageBase

_BYTE = MPI.BYTE
_REST_NBYTES = ENVELOPE_NBYTES % STEP_NBYTES
_MAX_EXTRA_NBYTES = inline_nbytes(1) - 1  # most bytes that a device array's message has beyond its data


def receive(
    comm: MessageBase, call: Callable[..., None], arguments: tuple[Any, ...], recvbuf: Any, status: MPI.Status | None
) -> None:
    """Receive into a host array by mpi4py's ``call(*arguments, status)``.

    Fetch the data if a device array was sent. `recvbuf` is the array among `arguments`; the last are source and tag.
    """
    status = MPI.Status() if status is None else status
    try:
        call(*arguments, status)
    except MPI.Exception as error:
        raise_refused(comm, error, call.__name__)
    except BaseException:
        abandon(comm, recvbuf)
        raise
    examine(comm, call, arguments, recvbuf, status)


def raise_refused(comm: MessageBase, error: MPI.Exception, operation: str) -> NoReturn:
    """Raise the exception of a host array's receive for an error that MPI returned."""
    if error.Get_error_class() != MPI.ERR_TRUNCATE:
        raise_explained(comm, error, operation)
    text = f"a message longer than the buffer (if a device array was sent, of {_MAX_EXTRA_NBYTES} bytes more, and "
    raise MPIError(MPI.ERR_TRUNCATE, f"{text}its data may be lost: receive it into a device array)") from error


def examine(
    comm: MessageBase, call: Callable[..., None], arguments: tuple[Any, ...], recvbuf: Any, status: MPI.Status
) -> None:
    """Fetch the data if mpi4py's call has received a device array's envelope."""
    # MPI.Comm.Recv(comm, array) may call this with a communicator of mpi4py's.
    if may_be_envelope(status.Get_count(_BYTE)) and isinstance(comm, Base):
        memory = memory_of(recvbuf)
        envelope = memory.envelope()
        if envelope is not None and envelope.transport == LETTER:
            _deliver(comm, memory, status)
            # The call itself might send again.
            receive(comm, MPI.Comm.Recv, (comm, recvbuf, *arguments[-2:]), recvbuf, status)
        elif envelope is not None:
            try:
                fetch = HostFetch(comm, memory, envelope)
            except BaseException:
                abandon(comm, recvbuf)
                raise
            complete(fetch, status)


def abandon(comm: MessageBase, recvbuf: Any) -> None:
    """Read a device array's message without the call that has received its envelope.

    An interrupt has ended the call. As the message of a host array, it has been received.
    """
    # The exception of the call counts.
    with suppress(Exception):
        memory = memory_of(recvbuf)
        envelope = memory.envelope()
        if envelope is not None and envelope.transport != LETTER and isinstance(comm, Base):
            HostFetch(comm, memory, envelope).abandon()


def _deliver(comm: MessageBase, memory: HostMemory, status: MPI.Status) -> None:
    """Deliver a handshake message that a receive of any tag has matched, and clear it."""
    comm.endpoint.partitioned.letters.deliver(status.source, memory.read(LETTER_NBYTES).tobytes())
    memory.replace(LETTER_NBYTES, memory.read(0))


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
    _start: Callable[[], MPI.Request] | None = None  # begins the receive again, without a send
    _again: MPI.Request | None = None  # the receive after a handshake message
    _last: MPI.Status | None = None  # status of the receive after a handshake message, once it has ended

    def is_complete(self, status: MPI.Status) -> bool:
        """Return whether the data of a message that MPI has received is complete.

        `status` is MPI's; it is set to the length of fetched data.
        """
        # Nearly all other messages are recognized by their lengths, without `_find`.
        if status.Get_count(_BYTE) % STEP_NBYTES != _REST_NBYTES:
            return True
        if status.Get_error() != MPI.SUCCESS:
            return True
        found = self._find(status, waits=False)
        if not found:
            return found is not None
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

    def abandon(self) -> None:
        """Read the data that no call will fetch, so that its sender can reuse its memory."""
        # No call is left that could raise an error.
        with suppress(Exception):
            if self._examine() and self.fetch is not None:
                fetch, self.fetch = self.fetch, None
                fetch.abandon()

    def go_on(self) -> None:
        """Begin to fetch a long message, whose sender may wait, before the program's call."""
        # The call that completes the request raises errors.
        with suppress(Exception):
            if self._examine(only_long=True) and self.fetch is not None:
                self.fetch.is_over()

    def _find(self, status: MPI.Status, *, waits: bool = True) -> bool | None:
        """Return whether MPI has received an envelope; prepare the fetch of its data.

        After a handshake message wait for the next message; return None instead if not `waits`, before it arrives.
        """
        if self._probed is not None:
            self._probed.set_origin(status)
        if self._last is not None:
            copy_status(status, self._last)
        while True:
            if self._again is not None:
                if not (waits or self._again.Get_status()):
                    return None
                self._again.Wait(status)
                self._again, self._last = None, MPI.Status(status)
            if not may_be_envelope(status.Get_count(_BYTE)) or not self._examine():
                return False
            if self.fetch is not None:
                return True
            self._receive_again(status)

    def _receive_again(self, status: MPI.Status) -> None:
        """Deliver a handshake message that a receive of any tag matched; receive again."""
        assert self._memory is not None
        _deliver(self._comm, self._memory, status)
        if self._start is None:
            raise NotSupported(
                "Irecv: a letter of Precv_init or Psend_init has come, for it takes any tag; name the tag"
            )
        self._again = self._start()

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
            if envelope.transport != LETTER and (self.fetch is None or not self.fetch.is_of(envelope)):
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
        if not landing.is_claimed:
            landing._examine()
            landing._finish(None)


_end = HostLanding.end
#: In place of the view of an array that exports no memory.
LASTING = memoryview(b"")


def ireceive(
    comm: MessageBase,
    start: Callable[[Any], MPI.Request],
    buf: Any,
    probed: ProbedMessage | None = None,
    again: Callable[[Any], MPI.Request] | None = None,
) -> MPI.Request:
    """Begin to receive into a host array by mpi4py's ``start(buf)``.

    If `start` also sends, `again` begins the same receive without the send.
    """
    spec, view = _viewed(buf)
    request = HostReceiveRequest(start(spec))
    request.landing = landing = HostLanding(view, HostLanding.end)
    landing._comm, landing._buf, landing.is_claimed, landing._probed = comm, buf, False, probed
    landing._start = lambda: (again or start)(buf)
    if has_own_datatype(buf):
        landing._memory = memory_of(buf, is_kept=True)
    if view is LASTING:
        return going_on(request)
    follow(landing)
    return request


def ireceive_plain(
    comm: MessageBase, start: Callable[..., MPI.Request], array: Any, source: int, tag: int
) -> MPI.Request:
    """Begin to receive a NumPy array by mpi4py's ``start(comm, array, source, tag)``."""
    try:
        view = memoryview(array)
        request = HostReceiveRequest(start(comm, view, source, tag))
    except (TypeError, ValueError, BufferError):
        # Let mpi4py raise its own exception.
        return start(comm, array, source, tag)
    request.landing = landing = HostLanding(view, _end)
    landing._comm, landing._buf, landing.is_claimed = comm, array, False
    follow(landing)
    return request


def _viewed(buf: Any) -> tuple[Any, memoryview]:
    """Return a buffer argument with the array replaced by a view, and the view."""
    is_spec = isinstance(buf, (list, tuple)) and len(buf) > 0
    try:
        view = memoryview(buf[0] if is_spec else buf)
    except (TypeError, ValueError, BufferError):
        return buf, LASTING
    # mpi4py refuses such arrays.
    if view.readonly or not view.contiguous:
        return buf, LASTING
    return (type(buf)((view, *buf[1:])) if is_spec else view), view
