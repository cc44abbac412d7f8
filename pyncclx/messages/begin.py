"""Beginning one side of a call: check the arguments, resolve the buffer, start MPI's part."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from ..arrays.buffers import Buffer
from ..errors import NotSupported
from ..team.streams import stream_for
from .channels import Outlet
from .mpi_transfer import start_receive, start_send
from .probe import HOLDING
from .receive import Incoming
from .send import SYNCHRONOUS, Outgoing
from .side import ResolvedSide, Side
from .typed import TypedBuffer, buffer_of

if TYPE_CHECKING:
    from .base import MessageBase
    from .endpoint import Endpoint


def resolve_send(endpoint: Endpoint, operation: str, side: Side) -> ResolvedSide | None:
    """Check a side that sends; None to MPI.PROC_NULL."""
    dest, tag = endpoint.check_send(operation, side.rank, side.tag)
    if dest == MPI.PROC_NULL:
        return None
    buffer, stream = resolve(endpoint, operation, side, writable=False)
    return ResolvedSide(buffer, stream, dest, tag)


def begin_send(
    comm: MessageBase, endpoint: Endpoint, operation: str, side: ResolvedSide | None, channel: Outlet | None = None
) -> Outgoing | None:
    """Begin to send what was resolved; a persistent request's has a channel."""
    if side is None:
        return None
    if isinstance(side.buffer, TypedBuffer):
        side.buffer.pack(endpoint, side.stream)
    call = MPI.Comm.Issend if operation in SYNCHRONOUS else MPI.Comm.Isend
    return Outgoing(endpoint, operation, side, partial(start_send, call, comm, side.rank, side.tag), channel)


def begin_receive(
    comm: MessageBase, endpoint: Endpoint, operation: str, side: Side, not_captured: Any = None
) -> Incoming | None:
    """Check a side that receives, and begin; None from MPI.PROC_NULL. `not_captured`: a stream that needs no check."""
    source, tag = endpoint.check_receive(operation, side.rank, side.tag)
    if source == MPI.PROC_NULL:
        return None
    buffer, stream = resolve(endpoint, operation, side, writable=True, not_captured=not_captured)
    return start_to_receive(comm, endpoint, operation, ResolvedSide(buffer, stream, source, tag))


def start_to_receive(comm: MessageBase, endpoint: Endpoint, operation: str, side: ResolvedSide) -> Incoming:
    """Start to receive after all checks: a message that a probe has found, if one matches, or the next one."""
    probed = comm.probed.take(side.rank, side.tag) if HOLDING else None
    incoming = Incoming(endpoint, operation, side.buffer, side.stream, probed)
    incoming.expect(side.rank, side.tag)
    if probed is None:
        incoming.start(partial(start_receive, comm, side.rank, side.tag))
    else:
        incoming.start(lambda memory: MPI.Message.Irecv(probed.message, [memory, MPI.BYTE]))
    return incoming


def resolve(
    endpoint: Endpoint, operation: str, side: Side, *, writable: bool, not_captured: Any = None
) -> tuple[Buffer, Any]:
    """Return the buffer, and the stream to work on."""
    device, buf = endpoint.device, side.buf
    buffer = buf if isinstance(buf, Buffer) else buffer_of(endpoint, operation, side, writable=writable)
    stream = stream_for(device, (buffer,), endpoint.caller)
    if stream is not not_captured and device.is_capturing(stream):
        raise NotSupported(
            f"{operation}: messages are matched on the host, so a graph cannot hold them; send outside of the "
            "capture, by requests of Send_init and Recv_init, or by a collective such as Alltoallv"
        )
    return buffer, stream
