"""MPI's sends and receives of device arrays."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

from mpi4py import MPI

from .. import events
from ..requests.open_receives import OPEN_RECEIVES
from ..requests.request import Request
from ..requests.status import check_status, copy_status, status_of_no_source
from . import staged
from .base import MessageBase
from .pending import emit, end_call, message_request
from .plan import NOTHING, place_of, planned, stream_of
from .probe import ProbedMessage
from .progress.pending_sends import UNFOLLOWED
from .receive import Incoming
from .send import Outgoing

_Method = TypeVar("_Method", bound=Callable[..., Any])


def sending(of_host: _Method) -> _Method:
    """Decorate `of_host`, a send of host arrays, to accept device arrays too."""
    operation = of_host.__name__
    blocks = operation in ("Send", "Ssend")

    @functools.wraps(of_host)
    def send(comm: MessageBase, buf: Any, dest: int, tag: int = 0) -> Any:
        began = events.now() if events.listeners else None
        plan = planned(comm, operation, buf, dest, tag, writable=False)
        if plan is None:
            return of_host(comm, buf, dest, tag)
        if began is not None:
            events.start(operation, began, comm)
        outgoing, request = None, None
        if (
            plan.is_staged
            and plan.is_short
            and comm.known.endpoint.caller.blocking == "host"
            and comm.known.endpoint.context.receives.pending_sends.takes_copies
        ):
            staged.send(comm, plan, began)
            return None if blocks else message_request()
        if plan is not NOTHING:
            endpoint, outgoing = comm.known.endpoint, Outgoing()
            try:
                outgoing.begin(comm, endpoint, plan, buf, stream_of(endpoint, plan))
                if not blocks:
                    outgoing.signal_ready()
                    request = message_request(outgoing)
                elif OPEN_RECEIVES or UNFOLLOWED:
                    outgoing.signal_ready()
                    outgoing.finish(outgoing.stream)
                else:
                    outgoing.signal_ready(wait=True)
            except BaseException:
                outgoing.leave()
                raise
            if blocks and (endpoint.caller.blocking == "host" or endpoint.caller.stream is not None):
                end_call(endpoint, outgoing)
        elif not blocks:
            request = message_request()
        if began is not None:
            emit(comm, operation, began, outgoing)
        return request

    return cast(_Method, send)


def receiving(of_host: _Method) -> _Method:
    """Decorate `of_host`, the Recv of host arrays, to accept device arrays too."""

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
        if status is not None:
            check_status(status)
        if began is not None:
            events.start("Recv", began, comm)
        if plan.is_staged and comm.known.endpoint.caller.blocking == "host" and staged.may_wait():
            return staged.receive(comm, plan, buf, status, began)
        incoming = None
        if plan is NOTHING:
            MPI.Comm.Recv(comm, [None, 0, MPI.BYTE], source, tag, status)
        else:
            endpoint, incoming = comm.known.endpoint, Incoming()
            try:
                incoming.begin(comm, endpoint, plan, buf, stream_of(endpoint, plan))
                incoming.finish(incoming.stream)
            except BaseException:
                incoming.leave(status)
                raise
            if status is not None:
                copy_status(status, incoming.status)
            if endpoint.caller.blocking == "host" or endpoint.caller.stream is not None:
                end_call(endpoint, incoming)
        if began is not None:
            emit(comm, "Recv", began, incoming)
        return None

    return cast(_Method, receive)


def ireceiving(of_host: _Method) -> _Method:
    """Decorate `of_host`, the Irecv of host arrays, to accept device arrays too."""

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
            endpoint, incoming = comm.known.endpoint, Incoming()
            try:
                if endpoint.caller.blocking == "host":
                    stream, incoming.start_event = place_of(endpoint, plan)
                else:
                    stream = stream_of(endpoint, plan)
                incoming.begin(comm, endpoint, plan, buf, stream)
                request = message_request(incoming, status=incoming.status)
            except BaseException:
                incoming.leave()
                raise
        if began is not None:
            emit(comm, "Irecv", began, incoming)
        return request

    return cast(_Method, ireceive)


def receive_matched(
    comm: MessageBase,
    operation: str,
    message: MPI.Message,
    probed: ProbedMessage | None,
    buf: Any,
    status: MPI.Status | None = None,
) -> Request | None:
    """Receive a matched message into a device array, or begin to receive it (Irecv)."""
    began = events.begin(operation, comm) if events.listeners else None
    plan = planned(comm, operation, buf, MPI.ANY_SOURCE, MPI.ANY_TAG, writable=True, is_matched=True)
    assert plan is not None
    endpoint, incoming, request = comm.lasting_endpoint, Incoming(), None
    try:
        incoming.begin(comm, endpoint, plan, buf, stream_of(endpoint, plan), message, probed)
        if operation == "Irecv":
            request = message_request(incoming, status=incoming.status)
        else:
            incoming.finish(incoming.stream)
    except BaseException:
        incoming.leave(status)
        raise
    if request is None:
        if status is not None:
            copy_status(status, incoming.status)
        end_call(endpoint, incoming)
    if began is not None:
        emit(comm, operation, began, incoming)
    return request
