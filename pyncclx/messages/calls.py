"""Sends and receives of MPI's point-to-point chapter on device arrays, out of `Outgoing` and `Incoming`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from .. import events
from ..requests.request import Request
from ..requests.status import copy_status
from .begin import begin_receive, begin_send, resolve, resolve_send
from .call_end import drain_if_blocking, emit
from .pending import receive_request, send_request
from .probe import ProbedMessage
from .receive import Incoming
from .send import Outgoing
from .side import Side

if TYPE_CHECKING:
    from .base import MessageBase


def send(comm: MessageBase, operation: str, buf: Any, dest: int, tag: int) -> None:
    """Send and Ssend."""
    began = events.begin(operation, comm) if events.listeners else None
    outgoing = _begin_send(comm, operation, Side(buf, dest, tag))
    if outgoing is not None:
        if outgoing.postbox.receives.idle:
            outgoing.signal_ready_and_wait()
        else:
            outgoing.signal_ready()
            outgoing.finish(outgoing.stream)
        drain_if_blocking(comm.state, outgoing.endpoint, outgoing)
    if began is not None:
        emit(comm, operation, began, outgoing)


def isend(comm: MessageBase, operation: str, buf: Any, dest: int, tag: int) -> Request:
    """Isend and Issend."""
    began = events.begin(operation, comm) if events.listeners else None
    outgoing = _begin_send(comm, operation, Side(buf, dest, tag))
    if outgoing is not None:
        outgoing.signal_ready()
    request = send_request(comm, outgoing)
    if began is not None:
        emit(comm, operation, began, outgoing)
    return request


def receive(comm: MessageBase, buf: Any, source: int, tag: int, status: MPI.Status | None) -> None:
    """Recv."""
    began = events.begin("Recv", comm) if events.listeners else None
    incoming = begin_receive(comm, comm.endpoint, "Recv", Side(buf, source, tag))
    if incoming is None:
        MPI.Comm.Recv(comm, [None, 0, MPI.BYTE], source, tag, status)
    else:
        _finish(comm, incoming, status)
    if began is not None:
        emit(comm, "Recv", began, incoming)


def ireceive(comm: MessageBase, buf: Any, source: int, tag: int) -> Request:
    """Irecv."""
    began = events.begin("Irecv", comm) if events.listeners else None
    incoming = begin_receive(comm, comm.endpoint, "Irecv", Side(buf, source, tag))
    request = receive_request(comm, incoming)
    if began is not None:
        emit(comm, "Irecv", began, incoming)
    return request


def receive_matched(
    comm: MessageBase, message: MPI.Message, buf: Any, status: MPI.Status | None, probed: ProbedMessage | None = None
) -> None:
    """Mrecv."""
    began = events.begin("Recv", comm) if events.listeners else None
    incoming = _begin_matched(comm, "Recv", message, buf, probed)
    _finish(comm, incoming, status)
    if began is not None:
        emit(comm, "Recv", began, incoming)


def ireceive_matched(comm: MessageBase, message: MPI.Message, buf: Any, probed: ProbedMessage | None = None) -> Request:
    """Imrecv."""
    began = events.begin("Irecv", comm) if events.listeners else None
    incoming = _begin_matched(comm, "Irecv", message, buf, probed)
    request = receive_request(comm, incoming)
    if began is not None:
        emit(comm, "Irecv", began, incoming)
    return request


def _begin_send(comm: MessageBase, operation: str, side: Side) -> Outgoing | None:
    endpoint = comm.endpoint
    return begin_send(comm, endpoint, operation, resolve_send(endpoint, operation, side))


def _begin_matched(
    comm: MessageBase, operation: str, message: MPI.Message, buf: Any, probed: ProbedMessage | None
) -> Incoming:
    """Begin to receive a message that a probe has matched."""
    endpoint = comm.endpoint
    buffer, stream = resolve(endpoint, operation, Side(buf, MPI.ANY_SOURCE, MPI.ANY_TAG), writable=True)
    incoming = Incoming(endpoint, operation, buffer, stream, probed)
    incoming.expect(MPI.ANY_SOURCE, MPI.ANY_TAG)
    incoming.start(lambda memory: MPI.Message.Irecv(message, [memory, MPI.BYTE]))
    return incoming


def _finish(comm: MessageBase, incoming: Incoming, status: MPI.Status | None) -> None:
    incoming.finish(incoming.stream)
    if status is not None:
        copy_status(status, incoming.status)
    drain_if_blocking(comm.state, incoming.endpoint, incoming)
