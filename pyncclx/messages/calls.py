"""Sends and receives of MPI's point-to-point chapter on device arrays, out of `Outgoing` and `Incoming`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from .. import events
from ..requests.open_receives import OPEN_RECEIVES
from ..requests.request import Request
from ..requests.status import copy_status
from .begin import begin_receive, begin_send, planned, stream_of
from .call_end import emit, wait_if_blocking
from .pending import receive_request, send_request
from .probe import ProbedMessage
from .receive import Incoming

if TYPE_CHECKING:
    from .base import MessageBase


def send(comm: MessageBase, operation: str, buf: Any, dest: int, tag: int) -> None:
    """Send and Ssend."""
    began = events.begin(operation, comm) if events.listeners else None
    endpoint, outgoing = comm.endpoint, None
    plan = planned(endpoint, operation, buf, dest, tag, writable=False)
    if plan is not None:
        outgoing = begin_send(comm, endpoint, plan, buf, stream_of(endpoint, plan))
        if not OPEN_RECEIVES:
            outgoing.signal_ready_and_wait()
        else:
            outgoing.signal_ready()
            outgoing.finish(outgoing.stream)
        wait_if_blocking(endpoint, outgoing)
    if began is not None:
        emit(comm, operation, began, outgoing)


def isend(comm: MessageBase, operation: str, buf: Any, dest: int, tag: int) -> Request:
    """Isend and Issend."""
    began = events.begin(operation, comm) if events.listeners else None
    endpoint, outgoing = comm.endpoint, None
    plan = planned(endpoint, operation, buf, dest, tag, writable=False)
    if plan is not None:
        outgoing = begin_send(comm, endpoint, plan, buf, stream_of(endpoint, plan))
        outgoing.signal_ready()
    request = send_request(outgoing)
    if began is not None:
        emit(comm, operation, began, outgoing)
    return request


def receive(comm: MessageBase, buf: Any, source: int, tag: int, status: MPI.Status | None) -> None:
    """Recv."""
    began = events.begin("Recv", comm) if events.listeners else None
    endpoint, incoming = comm.endpoint, None
    plan = planned(endpoint, "Recv", buf, source, tag, writable=True)
    if plan is None:
        MPI.Comm.Recv(comm, [None, 0, MPI.BYTE], source, tag, status)
    else:
        incoming = begin_receive(comm, endpoint, plan, buf, stream_of(endpoint, plan))
        _finish(incoming, status)
    if began is not None:
        emit(comm, "Recv", began, incoming)


def ireceive(comm: MessageBase, buf: Any, source: int, tag: int) -> Request:
    """Irecv."""
    began = events.begin("Irecv", comm) if events.listeners else None
    endpoint, incoming = comm.endpoint, None
    plan = planned(endpoint, "Irecv", buf, source, tag, writable=True)
    if plan is not None:
        incoming = begin_receive(comm, endpoint, plan, buf, stream_of(endpoint, plan))
    request = receive_request(incoming)
    if began is not None:
        emit(comm, "Irecv", began, incoming)
    return request


def receive_matched(
    comm: MessageBase, message: MPI.Message, buf: Any, status: MPI.Status | None, probed: ProbedMessage | None = None
) -> None:
    """Mrecv."""
    began = events.begin("Recv", comm) if events.listeners else None
    incoming = _begin_matched(comm, "Recv", message, buf, probed)
    _finish(incoming, status)
    if began is not None:
        emit(comm, "Recv", began, incoming)


def ireceive_matched(comm: MessageBase, message: MPI.Message, buf: Any, probed: ProbedMessage | None = None) -> Request:
    """Imrecv."""
    began = events.begin("Irecv", comm) if events.listeners else None
    incoming = _begin_matched(comm, "Irecv", message, buf, probed)
    request = receive_request(incoming)
    if began is not None:
        emit(comm, "Irecv", began, incoming)
    return request


def _begin_matched(
    comm: MessageBase, operation: str, message: MPI.Message, buf: Any, probed: ProbedMessage | None
) -> Incoming:
    """Begin to receive a message that a probe has matched."""
    endpoint = comm.endpoint
    plan = planned(endpoint, operation, buf, MPI.ANY_SOURCE, MPI.ANY_TAG, writable=True)
    assert plan is not None
    return Incoming(comm, endpoint, plan, buf, stream_of(endpoint, plan), message, probed)


def _finish(incoming: Incoming, status: MPI.Status | None) -> None:
    incoming.finish(incoming.stream)
    if status is not None:
        copy_status(status, incoming.status)
    wait_if_blocking(incoming.endpoint, incoming)
