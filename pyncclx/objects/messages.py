"""Objects with device arrays from one rank to another: sealed for the receiver, opened when they are unpickled."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

from .. import backends, events
from ..messages.call_end import drain_if_blocking
from ..messages.endpoint import Endpoint
from ..messages.envelope import ENVELOPE_NBYTES
from ..messages.mpi_transfer import GAP_NBYTES
from ..messages.receive import Incoming
from ..messages.send import Outgoing
from ..messages.side import ResolvedSide
from ..requests.open_receives import let_receives_leave
from ..system.process import PerProcess, held
from .cargo import Cargo, block
from .contents import Contents, put_together
from .libraries import Form
from .short import Short

if TYPE_CHECKING:
    from ..messages.base import MessageBase

_SEND, _RECEIVE = "send", "recv"  # in errors and events, whatever the method
_NOTHING = MPI.Request()
_sent: deque[Outgoing] = held(deque())  # type: ignore[type-var]  # whose data may not have been read yet
_ALONE = PerProcess(lambda: Endpoint(MPI.COMM_SELF, backends.select()))  # of objects unpickled outside of our methods


class _Thread(threading.local):
    """The communicator whose method a thread is in."""

    comm: MessageBase | None = None


_thread = _Thread()


class Sealed:
    """An object that can be sent to one rank: pickled, it is opened as soon as it is unpickled there.

    Attributes
    ----------
    fields : tuple
        The arguments of `open_sealed`.
    """

    def __init__(self, comm: MessageBase, outgoing: Outgoing, fields: tuple[Any, ...]) -> None:
        self._comm, self._outgoing, self.fields = comm, outgoing, fields

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return open_sealed, self.fields

    def finish(self) -> None:
        """Let what the stream does next come after the receiver has read the data."""
        outgoing = self._outgoing
        outgoing.finish(outgoing.stream)
        drain_if_blocking(self._comm.state, outgoing.endpoint)

    def keep(self) -> None:
        """Keep the data, which is a copy, until it has been read."""
        while _sent and _sent[0].is_over():
            _sent.popleft()
        _sent.append(self._outgoing)


def seal(comm: MessageBase, contents: Contents, dest: int, tag: int = 0, *, copied: bool = False) -> Sealed | Short:
    """Offer the data of an object's arrays to a rank; the caller calls `finish`, or `keep` if it is to be copied.

    Raises
    ------
    MPI.Exception, NotSupported, PeerTimeout, Aborted
        Before anything is offered.
    """
    began = events.now() if events.listeners else None
    endpoint = comm.endpoint
    dest, tag = endpoint.check_send(_SEND, dest, tag)
    device, cargo = endpoint.device, Cargo.of(endpoint.device, contents.arrays)
    if cargo.is_short:
        return Short.of(comm, contents, cargo, _SEND)
    data = cargo.new_block(device) if copied and not device.exports_are_copies else cargo.block(device)
    cargo.pack(device, data.address)
    messages: list[Any] = []

    def start(message: Any) -> MPI.Request:
        messages.append(message)  # mpi4py sends it, in the object
        return _NOTHING

    outgoing = Outgoing(endpoint, _SEND, ResolvedSide(data, cargo.stream, dest, tag), start, needs_envelope=True)
    outgoing.signal_ready()
    if began is not None:
        how = events.STAGED if outgoing.is_inline else events.NATIVE
        events.emit(_SEND, how, data.nbytes, began, comm=comm, peer=dest)
    message = _without_gap(messages[0])
    return Sealed(comm, outgoing, (contents.stream, contents.buffers, cargo.forms, message, endpoint.rank, tag))


def _without_gap(message: Any) -> bytes:
    """The bytes that MPI would transfer."""
    if isinstance(message, bytes):
        return message
    return bytes(message[:ENVELOPE_NBYTES]) + bytes(message[ENVELOPE_NBYTES + GAP_NBYTES :])


class Exchange:
    """A context in which the objects that this thread unpickles belong to a communicator.

    At its end the stream waits until the receivers of some messages have read them.
    """

    __slots__ = ("_comm", "_messages", "_outer")

    def __init__(self, comm: MessageBase, messages: Iterable[Any] = ()) -> None:
        self._comm, self._messages = comm, messages

    def __enter__(self) -> None:
        self._outer, _thread.comm = _thread.comm, self._comm

    def __exit__(self, *_: object) -> None:
        _thread.comm = self._outer
        for message in self._messages:
            if type(message) is Sealed:
                message.finish()


def open_sealed(
    stream: bytes, buffers: list[Any], forms: tuple[Form, ...], message: bytes, source: int, tag: int
) -> Any:
    """Return the object, in new arrays that the current stream fills; pickle calls this."""
    comm = _thread.comm
    began = events.now() if events.listeners else None
    endpoint = _ALONE.get() if comm is None else comm.endpoint
    endpoint.check()
    let_receives_leave()
    try:
        cargo = Cargo.like(endpoint.device, forms)
        data = cargo.block(endpoint.device)
    except Exception:
        _decline(endpoint, message, source, tag)
        raise
    incoming = _bring(endpoint, data, cargo.stream, message, source, tag)
    if began is not None:
        how = events.STAGED if incoming.is_inline else events.NATIVE
        events.emit(_RECEIVE, how, data.nbytes, began, comm=comm, peer=source)
    if len(forms) > 1:
        cargo.unpack(endpoint.device, data.address)
    arrays = cargo.finish(endpoint.device)
    if comm is None:
        endpoint.device.synchronize(cargo.stream)
    elif comm.blocking == "host":
        endpoint.drain()
    return put_together(stream, buffers, arrays)


def _bring(endpoint: Endpoint, data: Any, stream: Any, message: bytes, source: int, tag: int) -> Incoming:
    status = MPI.Status()
    status.source, status.tag = source, tag
    status.Set_elements(MPI.BYTE, len(message))
    incoming = Incoming(endpoint, _RECEIVE, data, stream)
    incoming.accept(np.frombuffer(message, np.uint8), status)
    incoming.finish(stream)
    return incoming


def _decline(endpoint: Endpoint, message: bytes, source: int, tag: int) -> None:
    """Let the sender use its memory again, though nothing reads the data."""
    with suppress(MPI.Exception):  # the message is longer than nothing
        _bring(endpoint, block(0, 0, None), endpoint.device.current_stream(), message, source, tag)
