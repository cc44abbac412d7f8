"""Messages of objects with device arrays: sealed to send, opened when unpickled.

The sender offers a copy, which the library keeps until the receiver has read it. So no send waits for the receiver to
unpickle the object, which may happen after all other calls of both ranks, as with `irecv`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from mpi4py import MPI

from mpi_bootstrap.own_errors import own_errors_suppressed

from .. import backends, events
from ..arrays.buffers import Buffer
from ..messages.base import MessageBase
from ..messages.endpoint import Endpoint
from ..messages.envelope import ENVELOPE_NBYTES, GAP_NBYTES
from ..messages.plan import plan_of
from ..messages.receive import Incoming
from ..messages.send import Outgoing
from ..requests.open_receives import let_receives_leave
from ..system.process import PerProcess
from .libraries import Form
from .opening import Opening, current, opener
from .packed_arrays import PackedArrays, block
from .pickled import Pickled, Short, put_together

# Most bytes of copies that no receiver has read; beyond that, MPI transfers the data. Not measured.
MOST_KEPT_NBYTES = 4 << 30
# Operation names in errors and events, for all methods.
_SEND, _RECEIVE = "send", "recv"
# Endpoint for objects that are unpickled outside pyncclx's methods.
_ALONE = PerProcess(lambda: Endpoint(MPI.COMM_SELF, backends.select()))


class Sealed:
    """An object for one rank, opened when that rank unpickles it.

    Attributes
    ----------
    fields : tuple
        Arguments of `open_sealed`.
    """

    def __init__(self, outgoing: Outgoing, fields: tuple[Any, ...]) -> None:
        self._outgoing, self.fields = outgoing, fields
        self._is_pickled = False

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        self._is_pickled = True
        return open_sealed, self.fields

    def withdraw(self) -> None:
        """Release the copy, unless the object has already been pickled.

        A pickled object may have been sent to the receiver.
        """
        if not self._is_pickled:
            self._outgoing.withdraw()


def seal(comm: MessageBase, contents: Pickled, dest: int, tag: int = 0) -> Sealed | Short:
    """Offer a copy of the arrays' data to a rank, or use MPI for short data.

    MPI also transfers the data if the limit of unread copies, or of device memory, is reached.

    Raises
    ------
    MPI.Exception, NotSupported, PeerTimeout, Aborted
        Raised before any copy is offered.
    """
    began = events.now() if events.listeners else None
    endpoint = comm.endpoint
    dest, tag = endpoint.check_send(_SEND, dest, tag)
    device, packed = endpoint.device, PackedArrays.of(contents.arrays)
    data = None if packed.is_short else _copy(endpoint, packed)
    if data is None:
        return Short.of(comm, contents, packed, _SEND)
    outgoing = Outgoing()
    try:
        outgoing.begin(None, endpoint, plan_of(endpoint, _SEND, data, dest, tag), None, packed.stream)
        # mpi4py sends the envelope inside the object.
        envelope = _without_gap(outgoing.message)
        sealed = Sealed(outgoing, (contents.stream, contents.buffers, packed.forms, envelope, endpoint.rank, tag))
        outgoing.signal_ready()
        if comm.blocking == "host":
            device.synchronize(packed.stream)
        if began is not None:
            how = events.STAGED if outgoing.is_inline else events.NATIVE
            events.emit(_SEND, how, data.nbytes, began, comm=comm, peer=dest)
        outgoing.abandon()
    except BaseException:
        outgoing.withdraw()
        raise
    return sealed


def _copy(endpoint: Endpoint, packed: PackedArrays) -> Buffer | None:
    """Return a copy of the data; None if unread copies have reached their limit."""
    if not endpoint.context.receives.pending_sends.has_room(packed.nbytes, MOST_KEPT_NBYTES):
        return None
    try:
        data = packed.new_block()
    except MemoryError:
        return None
    packed.pack(data.address)
    return data


def _without_gap(message: Any) -> bytes:
    """Return a message without the gap after its envelope, as MPI would transfer it."""
    if isinstance(message, bytes):
        return message
    return bytes(message[:ENVELOPE_NBYTES]) + bytes(message[ENVELOPE_NBYTES + GAP_NBYTES :])


class Exchange(Opening):
    """Context of a method that sends and receives objects.

    After an exception, it withdraws objects that have not been pickled.
    """

    __slots__ = ("_messages",)

    def __init__(self, comm: MessageBase, messages: Iterable[Any] = (), *, defers: bool = False) -> None:
        self.comm, self._messages, self.defers = comm, messages, defers

    def __exit__(self, error: object = None, /, *_: object) -> None:
        super().__exit__()
        if error is not None:
            withdraw(self._messages)


def withdraw(messages: Iterable[Any]) -> None:
    """Withdraw the sealed objects among messages, after an exception."""
    for message in messages:
        if type(message) is Sealed:
            message.withdraw()


def _decline(stream: bytes, buffers: list[Any], forms: tuple[Form, ...], message: bytes, source: int, tag: int) -> None:
    """Allow the sender to reuse its memory, without reading the data."""
    endpoint = _endpoint()
    # Receiving into no memory raises, because the message is longer.
    with own_errors_suppressed():
        _bring(endpoint, block(0, 0, None), endpoint.device.current_stream(), message, source, tag)


def _endpoint() -> Endpoint:
    comm = current.opening.comm
    return _ALONE.get() if comm is None else comm.endpoint


@opener(_decline)
def open_sealed(
    stream: bytes, buffers: list[Any], forms: tuple[Form, ...], message: bytes, source: int, tag: int
) -> Any:
    """Return the object, with new arrays that receive the data; pickle calls this."""
    comm, endpoint = current.opening.comm, _endpoint()
    began = events.now() if events.listeners else None
    try:
        endpoint.check()
        let_receives_leave()
        packed = PackedArrays.like(forms)
        data = packed.block()
    except BaseException:
        _decline(stream, buffers, forms, message, source, tag)
        raise
    incoming = _bring(endpoint, data, packed.stream, message, source, tag)
    if began is not None:
        how = events.STAGED if incoming.is_inline else events.NATIVE
        events.emit(_RECEIVE, how, data.nbytes, began, comm=comm, peer=source)
    if len(forms) > 1:
        packed.unpack(data.address)
    arrays = packed.finish()
    if comm is None or comm.blocking == "host":
        endpoint.device.synchronize(packed.stream)
        endpoint.check()
    return put_together(stream, buffers, arrays)


def _bring(endpoint: Endpoint, data: Any, stream: Any, message: bytes, source: int, tag: int) -> Incoming:
    status = MPI.Status()
    status.source, status.tag = source, tag
    status.Set_elements(MPI.BYTE, len(message))
    incoming = Incoming()
    incoming.begin(None, endpoint, plan_of(endpoint, _RECEIVE, data, source, tag), None, stream)
    incoming.accept(np.frombuffer(message, np.uint8), status)
    incoming.finish(stream)
    return incoming
