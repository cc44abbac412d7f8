"""Probe for messages; report a device array's length instead of its envelope's."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import starmap
from typing import Any, Literal, TypeVar, cast

from mpi4py import MPI

from ..failures.policy import explained, explained_request
from ..messages.base import MessageBase
from ..messages.envelope import may_be_envelope
from ..messages.host.dropped import DROPPED, serve_dropped
from ..messages.matched import Message
from ..messages.probe import HOLDING, ProbedMessage
from ..messages.progress.pending_sends import going_on
from ..requests.status import check_status
from ..system.mpi_library import goes_on_after_failures

_T = TypeVar("_T")
_OF_ARGUMENTS = (MPI.ERR_ARG, MPI.ERR_BUFFER, MPI.ERR_COUNT, MPI.ERR_TYPE)
_Method = TypeVar("_Method", bound=Callable[..., Any])


def take_probed(comm: MessageBase, source: int, tag: int) -> Message | None:
    """Take and return the held message that matches a receive; None if there is none."""
    found = comm.probed.take(source, tag) if HOLDING else None
    return None if found is None else Message(found.message, comm, found)


def is_probed(comm: MessageBase, source: int, tag: int) -> bool:
    """Return whether an earlier probe holds a message that matches a receive."""
    return bool(HOLDING) and comm.probed.find(source, tag) is not None


def is_divided(comm: MessageBase, source: int, tag: int) -> bool:
    """Return whether an `Isendrecv` of host arrays needs a request for each message.

    Open MPI has one request for both messages. After a failure of a rank or `Revoke`, that request completes without an
    error, or never.
    """
    return goes_on_after_failures() or is_probed(comm, source, tag)


@contextmanager
def probed_message(comm: MessageBase, source: int, tag: int) -> Iterator[Message | None]:
    """Return a context with the held message that matches a receive, or None.

    If the block raises before the message is received, the message stays held.
    """
    found = comm.probed.find(source, tag) if HOLDING else None
    if found is None:
        yield None
        return
    message = Message(found.message, comm, found)
    is_received = True
    try:
        yield message
    except BaseException as error:
        # MPI raises errors about arguments before it receives the message, and most others after that.
        is_received = not message or (isinstance(error, MPI.Exception) and error.Get_error_class() not in _OF_ARGUMENTS)
        raise
    finally:
        if is_received:
            comm.probed.forget(found)


def of_any(method: _Method) -> _Method:
    """Allow calls such as ``MPI.Comm.Mprobe(comm)`` with mpi4py's communicators.

    mpi4py's pkl5 makes such calls.
    """

    @functools.wraps(method)
    def either(self: Any, *args: Any, **kwargs: Any) -> Any:
        own = method if isinstance(self, MessageBase) else getattr(type(self), method.__name__)
        # After a call with `*args`, Python may run signal handlers and lose a request or a message. `starmap` prevents
        # that.
        (result,) = starmap(functools.partial(own, **kwargs), ((self, *args),))
        return result

    return cast(_Method, either)


class Probes(MessageBase):
    """Probes of all messages, also of device arrays.

    After `Probe` or `Iprobe` has found a message, receive it with this communicator's `Recv`, `Irecv`, a form of
    `Sendrecv`, `recv`, `irecv`, `sendrecv`, or a matched probe. If the message holds a device array, the probe may also
    hold earlier messages of the same rank with other tags, to which the same rule applies. A persistent receive into a
    host array can receive such an earlier message only if it was started before the probe.
    """

    @of_any
    def Probe(
        self, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: MPI.Status | None = None
    ) -> Literal[True]:
        """Wait for a message, and set the status to its source, tag and length."""
        self._look(super().Probe, source, tag, status)
        return True

    @of_any
    def Iprobe(self, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: MPI.Status | None = None) -> bool:
        """Return whether a message has arrived; set the status to source, tag and length."""
        return self._look(super().Iprobe, source, tag, status)

    @of_any
    def Mprobe(self, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: MPI.Status | None = None) -> Message:
        """Wait for a message, take it, and return it.

        Only the returned message can receive it, into a host or device array. See `Probe`.
        """
        return cast(Message, self._match(super().Mprobe, source, tag, status))

    @of_any
    def Improbe(
        self, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: MPI.Status | None = None
    ) -> Message | None:
        """Take a message and return it; return None if none has arrived.

        Only the returned message can receive it, into a host or device array. See `Iprobe`.
        """
        return self._match(super().Improbe, source, tag, status)

    def _look(self, probe: Callable[..., bool], source: int, tag: int, status: MPI.Status | None) -> bool:
        """Probe the messages held by earlier probes, then by mpi4py's method."""
        if DROPPED:
            serve_dropped()
        found = self.probed.find_and_read(source, tag) if HOLDING else None
        if found is None:
            status = MPI.Status() if status is None else status
            if not self._by_mpi(probe, source, tag, status):
                return False
            if status.source not in self.guarded:
                self.guard(status.source)
            if may_be_envelope(status.Get_elements(MPI.BYTE)):
                found = self.probed.hold(self, status)
        if found is not None:
            found.fill(status)
        return True

    def _match(
        self,
        probe: Callable[..., MPI.Message | None],
        source: int,
        tag: int,
        status: MPI.Status | None,
    ) -> Message | None:
        """Take a message that an earlier probe holds, or else call mpi4py's method.

        If an interrupt or error occurs, the message is held for a later call.
        """
        held = found = self.probed.find_and_read(source, tag)
        message, status = None, MPI.Status() if status is None else status
        if held is None:
            message = self._by_mpi(probe, source, tag, status)
            if message is None:
                return None
        try:
            if found is None:
                found = ProbedMessage.of(cast(MPI.Message, message), status).read()
            if held is None and not found.is_read:  # a host array's message
                return Message(message, self)
            found.fill(status)
            matched = Message(found.message, self, found)
            if held is not None:
                self.probed.forget(held)
        except BaseException:
            self.probed.put_back(found or ProbedMessage.of(cast(MPI.Message, message), status))
            raise
        return matched

    def _by_mpi(self, probe: Callable[..., _T], source: int, tag: int, status: MPI.Status) -> _T:
        """Probe with mpi4py's method, but never find the library's own messages."""
        if tag == MPI.ANY_TAG and source not in self.guarded:
            self.guard(source)
        try:
            # With `map`, Python runs no signal handler between MPI's return and the assignment.
            (found,) = map(probe, (source,), (tag,), (status,))
            return found
        except MPI.Exception as error:
            raise explained(self, error, probe.__name__) from error

    # As with mpi4py, a program may use the lower-case probes for arrays, too.

    probe, iprobe = Probe, Iprobe

    @of_any
    def mprobe(self, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: MPI.Status | None = None) -> Message:
        """Wait for a message, take it, and return it.

        The message may contain a Python object or an array.
        """
        return cast(Message, self._match(super().mprobe, source, tag, status))

    @of_any
    def improbe(
        self, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: MPI.Status | None = None
    ) -> Message | None:
        """Take a message and return it; return None if none has arrived.

        The message may contain a Python object or an array.
        """
        return self._match(super().improbe, source, tag, status)

    def recv(
        self,
        buf: Any = None,
        source: int = MPI.ANY_SOURCE,
        tag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> Any:
        """Receive a Python object, even if an earlier probe holds its message."""
        if tag == MPI.ANY_TAG and source not in self.guarded:
            self.guard(source)
        if status is not None:
            check_status(status)
        found = take_probed(self, source, tag)
        return super().recv(buf, source, tag, status) if found is None else found.recv(status)

    @of_any
    def irecv(self, buf: Any = None, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG) -> MPI.Request:
        """Begin to receive a Python object, and return a request."""
        if tag == MPI.ANY_TAG and source not in self.guarded:
            self.guard(source)
        found = take_probed(self, source, tag)
        request = super().irecv(buf, source, tag) if found is None else found.irecv()
        return going_on(explained_request(self, request))

    def sendrecv(
        self,
        sendobj: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = MPI.ANY_SOURCE,
        recvtag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> Any:
        """Send a Python object while receiving another, even if a probe holds it."""
        if recvtag == MPI.ANY_TAG and source not in self.guarded:
            self.guard(source)
        if not is_probed(self, source, recvtag):
            return super().sendrecv(sendobj, dest, sendtag, recvbuf, source, recvtag, status)
        if status is not None:
            check_status(status)
        # Begin the send first: if it raises, the held message stays.
        sending = self.isend(sendobj, dest, sendtag)
        received = Probes.recv(self, recvbuf, source, recvtag, status)
        sending.wait()
        return received
