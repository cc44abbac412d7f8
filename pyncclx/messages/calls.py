"""MPI's sends and receives of device arrays, by `Outgoing` and `Incoming`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

from mpi4py import MPI

from .. import events
from ..requests.open_receives import OPEN_RECEIVES
from ..requests.request import Request
from ..requests.status import copy_status, status_of_no_source
from .begin import NOTHING, place_of, planned, stream_of
from .call_end import emit, end_call
from .pending import message_request
from .probe import ProbedMessage
from .receive import Incoming
from .send import Outgoing

if TYPE_CHECKING:
    from .base import MessageBase

_Method = TypeVar("_Method", bound=Callable[..., Any])


def sending(of_host: _Method) -> _Method:
    """Make Send or Ssend accept device arrays; `of_host` serves host arrays."""
    operation = of_host.__name__

    @functools.wraps(of_host)
    def send(comm: MessageBase, buf: Any, dest: int, tag: int = 0) -> Any:
        began = events.now() if events.listeners else None
        plan = planned(comm, operation, buf, dest, tag, writable=False)
        if plan is None:
            return of_host(comm, buf, dest, tag)
        if began is not None:
            events.start(operation, began, comm)
        outgoing = None
        if plan is not NOTHING:
            endpoint = comm.known.endpoint
            outgoing = Outgoing(comm, endpoint, plan, buf, stream_of(endpoint, plan))
            try:
                if OPEN_RECEIVES:
                    outgoing.signal_ready()
                    outgoing.finish(outgoing.stream)
                else:
                    outgoing.signal_ready(wait=True)
            except Exception:
                raise
            except BaseException:
                outgoing.go_on()
                raise
            if endpoint.caller.blocking == "host" or endpoint.caller.stream is not None:
                end_call(endpoint, outgoing)
        if began is not None:
            emit(comm, operation, began, outgoing)
        return None

    return cast(_Method, send)


def isending(of_host: _Method) -> _Method:
    """Make Isend or Issend accept device arrays; `of_host` serves host arrays."""
    operation = of_host.__name__

    @functools.wraps(of_host)
    def isend(comm: MessageBase, buf: Any, dest: int, tag: int = 0) -> Any:
        began = events.now() if events.listeners else None
        plan = planned(comm, operation, buf, dest, tag, writable=False)
        if plan is None:
            return of_host(comm, buf, dest, tag)
        if began is not None:
            events.start(operation, began, comm)
        outgoing = None
        if plan is not NOTHING:
            endpoint = comm.known.endpoint
            outgoing = Outgoing(comm, endpoint, plan, buf, stream_of(endpoint, plan))
            outgoing.signal_ready()
        request = message_request() if outgoing is None else message_request(outgoing)
        if began is not None:
            emit(comm, operation, began, outgoing)
        return request

    return cast(_Method, isend)


def receiving(of_host: _Method) -> _Method:
    """Make Recv accept device arrays; `of_host` serves host arrays."""

    @functools.wraps(of_host)
    def receive(
        comm: MessageBase,
        buf: Any,
        source: int = MPI.ANY_SOURCE,
        tag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> Any:
        began = events.now() if events.listeners else None
        plan = planned(comm, "Recv", buf, source, tag, writable=True)
        if plan is None:
            return of_host(comm, buf, source, tag, status)
        if began is not None:
            events.start("Recv", began, comm)
        incoming = None
        if plan is NOTHING:
            MPI.Comm.Recv(comm, [None, 0, MPI.BYTE], source, tag, status)
        else:
            endpoint = comm.known.endpoint
            incoming = Incoming(comm, endpoint, plan, buf, stream_of(endpoint, plan))
            incoming.finish(incoming.stream)
            if status is not None:
                copy_status(status, incoming.status)
            if endpoint.caller.blocking == "host" or endpoint.caller.stream is not None:
                end_call(endpoint, incoming)
        if began is not None:
            emit(comm, "Recv", began, incoming)
        return None

    return cast(_Method, receive)


def ireceiving(of_host: _Method) -> _Method:
    """Make Irecv accept device arrays; `of_host` serves host arrays."""

    @functools.wraps(of_host)
    def ireceive(comm: MessageBase, buf: Any, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG) -> Any:
        began = events.now() if events.listeners else None
        plan = planned(comm, "Irecv", buf, source, tag, writable=True)
        if plan is None:
            return of_host(comm, buf, source, tag)
        if began is not None:
            events.start("Irecv", began, comm)
        incoming = None
        if plan is NOTHING:
            request = message_request(status=status_of_no_source())
        else:
            endpoint = comm.known.endpoint
            stream, start = place_of(endpoint, plan)
            incoming = Incoming(comm, endpoint, plan, buf, stream)
            incoming.start_event = start
            request = message_request(incoming, status=incoming.status)
        if began is not None:
            emit(comm, "Irecv", began, incoming)
        return request

    return cast(_Method, ireceive)


def receive_matched(
    comm: MessageBase, message: MPI.Message, buf: Any, status: MPI.Status | None, probed: ProbedMessage | None = None
) -> None:
    """Receive a matched message into a device array (Mrecv)."""
    began = events.begin("Recv", comm) if events.listeners else None
    incoming = _begin_matched(comm, "Recv", message, buf, probed)
    incoming.finish(incoming.stream)
    if status is not None:
        copy_status(status, incoming.status)
    end_call(incoming.endpoint, incoming)
    if began is not None:
        emit(comm, "Recv", began, incoming)


def ireceive_matched(comm: MessageBase, message: MPI.Message, buf: Any, probed: ProbedMessage | None = None) -> Request:
    """Begin to receive a matched message into a device array (Imrecv)."""
    began = events.begin("Irecv", comm) if events.listeners else None
    incoming = _begin_matched(comm, "Irecv", message, buf, probed)
    request = message_request(incoming, status=incoming.status)
    if began is not None:
        emit(comm, "Irecv", began, incoming)
    return request


def _begin_matched(
    comm: MessageBase, operation: str, message: MPI.Message, buf: Any, probed: ProbedMessage | None
) -> Incoming:
    """Begin to receive a message that a probe has matched."""
    plan, endpoint = planned(comm, operation, buf, MPI.ANY_SOURCE, MPI.ANY_TAG, writable=True), comm.endpoint
    assert plan is not None
    return Incoming(comm, endpoint, plan, buf, stream_of(endpoint, plan), message, probed)
