"""Sends and receives of MPI's point-to-point chapter on device arrays, out of `Outgoing` and `Incoming`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from ..arrays.buffers import Buffer
from ..errors import NotSupported
from ..requests.request import Request, request_of
from ..team.streams import stream_for
from .begin import begin, begin_to_send
from .probe import ProbedMessage
from .receive import Incoming
from .send import SYNCHRONOUS, Outgoing
from .typed import TypedBuffer, buffer_of

if TYPE_CHECKING:
    from ..team.state import State
    from .base import MessageBase
    from .endpoint import Endpoint


def send(comm: MessageBase, operation: str, buf: Any, dest: int, tag: int) -> None:
    """Send and Ssend."""
    outgoing = _begin_send(comm, operation, buf, dest, tag)
    if outgoing is None:
        return
    if outgoing.postbox.idle:
        outgoing.say_ready_and_wait()
    else:
        outgoing.say_ready()
        outgoing.finish(outgoing.stream)
    after(comm.state, outgoing.endpoint)


def isend(comm: MessageBase, operation: str, buf: Any, dest: int, tag: int) -> Request:
    """Isend and Issend."""
    outgoing = _begin_send(comm, operation, buf, dest, tag)
    if outgoing is not None:
        outgoing.say_ready()
    return request_of(Pending(comm, outgoing, MPI.Status()))


def receive(comm: MessageBase, buf: Any, source: int, tag: int, status: MPI.Status | None) -> None:
    """Recv."""
    incoming = begin_to_receive(comm, comm.endpoint, "Recv", buf, source, tag)
    if incoming is None:
        return MPI.Comm.Recv(comm, [None, 0, MPI.BYTE], source, tag, status)
    incoming.finish(incoming.stream)
    if status is not None:
        tell(status, incoming.status)
    return after(comm.state, incoming.endpoint)


def ireceive(comm: MessageBase, buf: Any, source: int, tag: int) -> Request:
    """Irecv."""
    incoming = posted(begin_to_receive(comm, comm.endpoint, "Irecv", buf, source, tag))
    return request_of(Pending(comm, incoming, incoming.status if incoming else no_source()), incoming)


def receive_matched(
    comm: MessageBase, message: MPI.Message, buf: Any, status: MPI.Status | None, held: ProbedMessage | None = None
) -> None:
    """Mrecv."""
    incoming = _matched(comm, "Recv", message, buf, held)
    incoming.finish(incoming.stream)
    if status is not None:
        tell(status, incoming.status)
    after(comm.state, incoming.endpoint)


def ireceive_matched(comm: MessageBase, message: MPI.Message, buf: Any, held: ProbedMessage | None = None) -> Request:
    """Imrecv."""
    incoming = _matched(comm, "Irecv", message, buf, held)
    return request_of(Pending(comm, posted(incoming), incoming.status), incoming)


class Pending:
    """What a request of this module stands for."""

    def __init__(self, comm: MessageBase, message: Outgoing | Incoming | None, status: MPI.Status) -> None:
        self._state, self._message, self._status = comm.state, message, status

    def finish(self) -> None:
        message, self._message = self._message, None
        if message is not None:
            stream = _stream_now(message)
            message.finish(stream)
            if isinstance(message.buffer, TypedBuffer):  # whose packed copy goes back to the message's stream
                message.endpoint.device.order(stream, message.stream)
            after(self._state, message.endpoint)

    def is_over(self) -> bool:
        if self._message is None:
            return True
        self._message.endpoint.check()
        self._message.postbox.progress()
        return self._message.is_over()

    def fill(self, status: MPI.Status) -> None:
        tell(status, self._status)


def resolved(endpoint: Endpoint, name: str, buf: Any, *, writable: bool, free: Any = None) -> tuple[Buffer, Any]:
    """The buffer, and the stream to work on; the stream `free` is known not to be captured."""
    device = endpoint.device
    buffer = buf if isinstance(buf, Buffer) else buffer_of(endpoint, buf, name, writable=writable)
    stream = device.current_stream() if buffer.stream is None else stream_for(device, (buffer,))
    if stream is not free and device.is_capturing(stream):
        raise NotSupported(
            f"{name.partition(':')[0]}: messages are matched on the host, so a graph cannot hold them; send outside "
            "of the capture, or exchange by a collective such as Alltoallv"
        )
    return buffer, stream


def _begin_send(comm: MessageBase, operation: str, buf: Any, dest: int, tag: int) -> Outgoing | None:
    """Begin to send; None to MPI.PROC_NULL."""
    endpoint = comm.endpoint
    dest, tag = endpoint.check_send(operation, dest, tag)
    if dest == MPI.PROC_NULL:
        return None
    buffer, stream = resolved(endpoint, f"{operation}: buf", buf, writable=False)
    return outgoing_of(comm, endpoint, operation, buffer, stream, dest, tag)


def outgoing_of(
    comm: MessageBase, endpoint: Endpoint, operation: str, buffer: Buffer, stream: Any, dest: int, tag: int
) -> Outgoing:
    if isinstance(buffer, TypedBuffer):
        buffer.pack(endpoint, stream)
    start = MPI.Comm.Issend if operation in SYNCHRONOUS else MPI.Comm.Isend
    return Outgoing(endpoint, operation, buffer, dest, tag, stream, partial(begin_to_send, start, comm))


def begin_to_receive(
    comm: MessageBase,
    endpoint: Endpoint,
    operation: str,
    buf: Any,
    source: int,
    tag: int,
    name: str = "buf",
    free: Any = None,
) -> Incoming | None:
    """Begin to receive; None from MPI.PROC_NULL."""
    source, tag = endpoint.check_receive(operation, source, tag)
    if source == MPI.PROC_NULL:
        return None
    buffer, stream = resolved(endpoint, f"{operation}: {name}", buf, writable=True, free=free)
    return Incoming(endpoint, operation, buffer, source, tag, stream, partial(begin, MPI.Comm.Irecv, comm))


def posted(incoming: Incoming | None) -> Incoming | None:
    """A receive that goes on whatever this process waits for."""
    if incoming is not None:
        incoming.postbox.post(incoming)
    return incoming


def _matched(comm: MessageBase, operation: str, message: MPI.Message, buf: Any, held: ProbedMessage | None) -> Incoming:
    """Begin to receive a message that a probe has matched."""

    def start(envelope: Any, source: int, tag: int) -> MPI.Request:
        return MPI.Message.Irecv(message, [envelope, MPI.BYTE])

    endpoint = comm.endpoint
    buffer, stream = resolved(endpoint, f"{operation}: buf", buf, writable=True)
    return Incoming(endpoint, operation, buffer, MPI.ANY_SOURCE, MPI.ANY_TAG, stream, start, held)


def _stream_now(message: Outgoing | Incoming) -> Any:
    """The stream that goes on when a request was waited for; with PyTorch's tensors, theirs."""
    return message.stream if message.buffer.of_torch else message.endpoint.device.current_stream()


def after(state: State, endpoint: Endpoint) -> None:
    if state.blocking == "host":  # known of a communicator that has been freed since, too
        endpoint.drain()


def tell(status: MPI.Status, known: MPI.Status) -> None:
    """Copy what is known of a message."""
    status.Set_source(known.source)
    status.Set_tag(known.tag)
    status.Set_error(MPI.SUCCESS)
    status.Set_elements(MPI.BYTE, known.Get_elements(MPI.BYTE))


def no_source() -> MPI.Status:
    """What MPI tells of a message from MPI.PROC_NULL."""
    status = MPI.Status()
    status.Set_source(MPI.PROC_NULL)
    return status
