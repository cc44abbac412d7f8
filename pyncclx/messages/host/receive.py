"""Receives into host arrays by mpi4py, whose message may be a device array's.

In that case MPI receives an envelope, which is recognized by its first bytes. `examine` checks blocking receives.
`HostLanding` of `landing.py` checks nonblocking ones, in all calls that complete the request.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from mpi4py import MPI

from mpi_bootstrap import interrupts_deferred
from mpi_bootstrap.own_errors import own_error, own_errors_suppressed

from ...errors import MPIError
from ...failures.policy import raise_explained
from ...requests.host_receive import HostReceiveRequest
from ...team.base import Base
from ..base import MessageBase
from ..envelope import inline_nbytes, may_be_envelope
from ..probe import ProbedMessage
from ..progress.pending_sends import follow, going_on
from .dropped import DROPPED, LASTING, serve_dropped
from .fetch import HostFetch, complete
from .landing import HostLanding
from .memory import has_own_datatype, memory_of

_BYTE = MPI.BYTE
_MAX_EXTRA_NBYTES = inline_nbytes(1) - 1  # most bytes of a device array's message beyond its data


def receive(
    comm: MessageBase, call: Callable[..., None], arguments: tuple[Any, ...], recvbuf: Any, status: MPI.Status | None
) -> None:
    """Receive into a host array by mpi4py's ``call(*arguments, status)``.

    Fetch the data if a device array was sent. `recvbuf` is the array that the call receives into.
    """
    if DROPPED:
        serve_dropped()
    status = MPI.Status() if status is None else status
    try:
        call(*arguments, status)
    except MPI.Exception as error:
        raise_refused(comm, error, call.__name__)
    except BaseException:
        examine_interrupted(comm, recvbuf, status)
        raise
    try:
        examine(comm, recvbuf, status)
    except BaseException as error:
        # An interrupt may have prevented `examine` from finding the envelope.
        if own_error(error) is None:
            examine_interrupted(comm, recvbuf, status)
        raise


def raise_refused(comm: MessageBase, error: MPI.Exception, operation: str) -> NoReturn:
    """Raise the exception for an MPI error of a receive into a host array."""
    if error.Get_error_class() != MPI.ERR_TRUNCATE:
        raise_explained(comm, error, operation)
    text = f"a message longer than the buffer (if a device array was sent, of {_MAX_EXTRA_NBYTES} bytes more, and "
    raise MPIError(MPI.ERR_TRUNCATE, f"{text}its data may be lost: receive it into a device array)") from error


def examine(comm: MessageBase, recvbuf: Any, status: MPI.Status) -> None:
    """Fetch the data if mpi4py's call has received a device array's envelope."""
    # In `MPI.Comm.Recv(comm, array)`, comm may be one of mpi4py's communicators.
    if may_be_envelope(status.Get_count(_BYTE)) and isinstance(comm, Base):
        # As in MPI, a signal handler's exception is raised after the data has arrived.
        with interrupts_deferred(to_the_end=True):
            memory = memory_of(recvbuf)
            envelope = memory.envelope()
            if envelope is not None:
                complete(HostFetch(comm, memory, envelope), status)


def examine_interrupted(comm: MessageBase, recvbuf: Any, status: MPI.Status) -> None:
    """Fetch the data of a message that an interrupted call has received.

    As in MPI, the signal handler's exception is raised after the data has arrived.
    """
    # Raise only the exception of the call.
    with own_errors_suppressed():
        examine(comm, recvbuf, status)


def abandon(comm: MessageBase, recvbuf: Any) -> None:
    """Read the data of a device array's message that an interrupted call received.

    The message counts as received, as a host array's message does after an interrupt.
    """
    # Raise only the exception of the call.
    with own_errors_suppressed():
        memory = memory_of(recvbuf)
        envelope = memory.envelope()
        if envelope is not None and isinstance(comm, Base):
            HostFetch(comm, memory, envelope).abandon()


_end = HostLanding.end


def ireceive(
    comm: MessageBase,
    start: Callable[[Any], MPI.Request],
    buf: Any,
    probed: ProbedMessage | None = None,
) -> MPI.Request:
    """Begin to receive into a host array by mpi4py's ``start(buf)``, a C function."""
    spec, view = _viewed(buf)
    # With `map`, Python runs no signal handler between MPI's return and the assignment.
    (begun,) = map(start, (spec,))
    request = None
    try:
        request = HostReceiveRequest(begun)
        landing = HostLanding(view, HostLanding.end)
        landing._comm, landing._buf, landing.is_claimed, landing._probed = comm, buf, False, probed
        request.landing = landing
        if has_own_datatype(buf):
            landing._memory = memory_of(buf, is_kept=True)
        if view is LASTING:
            return going_on(request)
        _follow(landing)
    except BaseException:
        take_back(comm, begun, buf, request)
        raise
    return request


def take_back(comm: MessageBase, request: MPI.Request, buf: Any, copy: HostReceiveRequest | None) -> None:
    """Cancel the receive of an interrupted call.

    If MPI has already matched the receive, receive the message. `copy` is a copy of the request, if there is one.
    """
    landing = None if copy is None else copy.landing
    if copy is not None and landing is not None:
        landing.is_claimed, copy.landing = True, None
    # Raise only the exception of the call.
    with own_errors_suppressed():
        status = MPI.Status()
        MPI.Request.Cancel(request)
        MPI.Request.Wait(request, status)
        if not status.Is_cancelled():
            abandon(comm, buf) if landing is None else landing.abandon()


def ireceive_plain(
    comm: MessageBase, start: Callable[..., MPI.Request], array: Any, source: int, tag: int
) -> MPI.Request:
    """Begin to receive a NumPy array by mpi4py's ``start(comm, array, source, tag)``."""
    try:
        view = memoryview(array)
        # `map` keeps signal handlers away; see `ireceive`.
        (begun,) = map(start, (comm,), (view,), (source,), (tag,))
    except (TypeError, ValueError, BufferError):
        # Let mpi4py raise its own exception.
        return start(comm, array, source, tag)
    request = None
    try:
        request = HostReceiveRequest(begun)
        landing = HostLanding(view, _end)
        landing._comm, landing._buf, landing.is_claimed = comm, array, False
        request.landing = landing
        _follow(landing)
    except BaseException:
        take_back(comm, begun, array, request)
        raise
    return request


def _follow(landing: HostLanding) -> None:
    if DROPPED:
        serve_dropped()
    follow(landing)


def _viewed(buf: Any) -> tuple[Any, memoryview]:
    """Return a buffer argument with the array replaced by a view, and the view."""
    is_spec = isinstance(buf, (list, tuple)) and len(buf) > 0
    try:
        view = memoryview(buf[0] if is_spec else buf)
    except (TypeError, ValueError, BufferError):
        return buf, LASTING
    # mpi4py rejects such arrays.
    if view.readonly or not view.contiguous:
        return buf, LASTING
    return (type(buf)((view, *buf[1:])) if is_spec else view), view
