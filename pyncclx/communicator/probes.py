"""Probes of a communicator: their status has the length of a device array, not of the envelope that MPI matched."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal, TypeVar, cast

from mpi4py import MPI

from ..messages.base import MessageBase
from ..messages.matched import Message
from ..messages.probe import ProbedMessage

_Method = TypeVar("_Method", bound=Callable[..., Any])


def probed(comm: MessageBase, source: int, tag: int) -> Message | None:
    """The message that an earlier probe has taken from MPI, if the receive matches it."""
    held = comm.probed.take(source, tag)
    return None if held is None else Message(held.message, comm, held)


def _of_any(method: _Method) -> _Method:
    """A method that may be called with a communicator of mpi4py's: ``MPI.Comm.Mprobe(comm)``, as its pkl5 does."""

    @functools.wraps(method)
    def either(self: Any, *args: Any, **kwargs: Any) -> Any:
        own = method if isinstance(self, Probes) else getattr(type(self), method.__name__)
        return own(self, *args, **kwargs)

    return cast(_Method, either)


class Probes(MessageBase):
    """Probes of messages with device arrays, and of others.

    A message that `Probe` or `Iprobe` has found can be received by this communicator's `Recv`, `Irecv`, all forms of
    `Sendrecv`, `recv`, `irecv` and `sendrecv`, or by a matched probe. If it holds a device array, this is also true of
    messages that the same rank sent before it with other tags; a persistent receive of those must have been started
    before the probe.
    """

    @_of_any
    def Probe(
        self, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: MPI.Status | None = None
    ) -> Literal[True]:
        """Wait for a message; the status has its source, tag and length. As mpi4py's `Probe`."""
        held = self.probed.find_and_read(source, tag)
        if held is None:
            status = MPI.Status() if status is None else status
            super().Probe(source, tag, status)
            held = self.probed.hold(self, status)
        if held is not None:
            held.fill(status)
        return True

    @_of_any
    def Iprobe(self, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: MPI.Status | None = None) -> bool:
        """Whether a message has come; the status has its source, tag and length. As mpi4py's `Iprobe`."""
        held = self.probed.find_and_read(source, tag)
        if held is None:
            status = MPI.Status() if status is None else status
            if not super().Iprobe(source, tag, status):
                return False
            held = self.probed.hold(self, status)
        if held is not None:
            held.fill(status)
        return True

    @_of_any
    def Mprobe(self, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: MPI.Status | None = None) -> Message:
        """As `Probe`; only the returned message can receive it, into a host or device array."""
        held = self.probed.take(source, tag)
        if held is None:
            known = MPI.Status() if status is None else status
            return self._matched(super().Mprobe(source, tag, known), known)
        return self._taken(held, status)

    @_of_any
    def Improbe(
        self, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: MPI.Status | None = None
    ) -> Message | None:
        """As `Iprobe`; only the returned message can receive it, into a host or device array. None if none has come."""
        held = self.probed.take(source, tag)
        if held is None:
            known = MPI.Status() if status is None else status
            message = super().Improbe(source, tag, known)
            return None if message is None else self._matched(message, known)
        return self._taken(held, status)

    def _matched(self, message: MPI.Message, known: MPI.Status) -> Message:
        """A message that MPI has matched just now."""
        held = ProbedMessage.of(message, known).read()
        return self._taken(held, known) if held.is_read else Message(message, self)

    def _taken(self, held: ProbedMessage, status: MPI.Status | None) -> Message:
        """One that a probe has taken."""
        held = held.read()
        held.fill(status)
        return Message(held.message, self, held)

    # Of Python objects: mpi4py's own, but for messages that a probe above has found

    @_of_any
    def probe(
        self, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: MPI.Status | None = None
    ) -> Literal[True]:
        """As mpi4py's `probe`."""
        found = self.probed.find(source, tag)
        return self.Probe(source, tag, status) if found else super().probe(source, tag, status)

    @_of_any
    def iprobe(self, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: MPI.Status | None = None) -> bool:
        """As mpi4py's `iprobe`."""
        found = self.probed.find(source, tag)
        return self.Iprobe(source, tag, status) if found else super().iprobe(source, tag, status)

    @_of_any
    def mprobe(
        self, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: MPI.Status | None = None
    ) -> MPI.Message:
        """As mpi4py's `mprobe`."""
        found = self.probed.find(source, tag)
        return self.Mprobe(source, tag, status) if found else super().mprobe(source, tag, status)

    @_of_any
    def improbe(
        self, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: MPI.Status | None = None
    ) -> MPI.Message | None:
        """As mpi4py's `improbe`."""
        found = self.probed.find(source, tag)
        return self.Improbe(source, tag, status) if found else super().improbe(source, tag, status)

    @_of_any
    def recv(
        self,
        buf: Any = None,
        source: int = MPI.ANY_SOURCE,
        tag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> Any:
        """As mpi4py's `recv`."""
        found = probed(self, source, tag)
        return super().recv(buf, source, tag, status) if found is None else found.recv(status)

    @_of_any
    def irecv(self, buf: Any = None, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG) -> MPI.Request:
        """As mpi4py's `irecv`."""
        found = probed(self, source, tag)
        return super().irecv(buf, source, tag) if found is None else found.irecv()

    @_of_any
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
        """As mpi4py's `sendrecv`."""
        found = probed(self, source, recvtag)
        if found is None:
            return super().sendrecv(sendobj, dest, sendtag, recvbuf, source, recvtag, status)
        sending = self.isend(sendobj, dest, sendtag)
        received = found.recv(status)
        sending.wait()
        return received
