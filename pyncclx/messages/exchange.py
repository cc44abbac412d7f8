"""Calls that send one device array and receive another, such as Sendrecv."""

from __future__ import annotations

from typing import Any

from mpi4py import MPI

from mpi_bootstrap.own_errors import own_error

from .. import events
from ..arrays.buffers import Buffer
from ..derived.buffers import TypedBuffer
from ..requests.completing import has_come
from ..requests.request import Request, request_of
from ..requests.status import copy_status, status_of_no_source
from ..requests.work import Work
from . import staged
from .base import MessageBase
from .endpoint import Endpoint
from .pending import emit, end_call, message_request
from .plan import NOTHING, Plan, plan_of, planned, stream_of
from .receive import Incoming
from .send import Outgoing

Side = tuple[Plan, Any]  # plan, array or buffer spec


def exchange(
    comm: MessageBase, operation: str, began: float | None, sending: Side, receiving: Side, status: MPI.Status | None
) -> None:
    """Send and receive, and wait for both (Sendrecv, Sendrecv_replace)."""
    blocks = comm.known.endpoint.caller.blocking == "host"
    if blocks and sending[0].is_staged and receiving[0].is_staged and staged.may_wait():
        if began is not None:
            events.start(operation, began, comm)
        staged.exchange(comm, *sending, *receiving, status, began)
        return
    endpoint: Endpoint = comm.known.endpoint
    outgoing = None if sending[0] is NOTHING else Outgoing()
    incoming = None if receiving[0] is NOTHING else Incoming()
    try:
        _begin(comm, endpoint, operation, began, (outgoing, *sending), (incoming, *receiving), at_once=True)
        waited = None if outgoing is None or outgoing.plan.is_free_at_once else outgoing
        try:
            if incoming is not None:
                incoming.finish(incoming.stream)
        except BaseException as error:
            # The program may overwrite the buffer next.
            if waited is not None and own_error(error) is not None:
                waited.finish(waited.stream)
            raise
        if waited is not None:
            waited.finish(waited.stream)
    except BaseException:
        _leave(incoming, outgoing, status)
        raise
    if status is not None:
        copy_status(status, incoming.status if incoming else status_of_no_source())
    if endpoint.caller.blocking == "host" or endpoint.caller.stream is not None:
        end_call(endpoint, incoming, outgoing)
    if began is not None:
        emit(comm, operation, began, outgoing, incoming)


def iexchange(comm: MessageBase, operation: str, began: float | None, sending: Side, receiving: Side) -> Request:
    """Begin to send and receive; return the request (Isendrecv, Isendrecv_replace)."""
    outgoing = None if sending[0] is NOTHING else Outgoing()
    incoming = None if receiving[0] is NOTHING else Incoming()
    try:
        _begin(comm, comm.known.endpoint, operation, began, (outgoing, *sending), (incoming, *receiving))
        status = status_of_no_source() if incoming is None else incoming.status
        request = message_request(*(each for each in (incoming, outgoing) if each is not None), status=status)
    except BaseException:
        _leave(incoming, outgoing)
        raise
    if began is not None:
        emit(comm, operation, began, outgoing, incoming)
    return request


def together(receiving: MPI.Request, sending: MPI.Request) -> Request:
    """Combine the requests of a receive and a send; the status is the receive's.

    One of them is for a host array.
    """
    return request_of(_Exchange(receiving, sending))


def _begin(
    comm: MessageBase,
    endpoint: Endpoint,
    operation: str,
    began: float | None,
    sending: tuple[Outgoing | None, Plan, Any],
    receiving: tuple[Incoming | None, Plan, Any],
    *,
    at_once: bool = False,
) -> None:
    """Begin the receive and the send; a message to or from MPI.PROC_NULL is None.

    Set `at_once` if the caller waits for the receive next: if its message arrives soon, one kernel copies both
    messages.
    """
    if began is not None:
        events.start(operation, began, comm)
    (outgoing, send_plan, sent), (incoming, plan, received) = sending, receiving
    send_stream = None if outgoing is None else stream_of(endpoint, send_plan)
    if incoming is not None:
        # If neither array names a stream, one wait for the current stream is enough for both.
        has_waited = plan.of_current is not None and plan.of_current == send_plan.of_current
        stream = send_stream if has_waited else stream_of(endpoint, plan)
        incoming.begin(comm, endpoint, plan, received, stream)
    if outgoing is not None:
        outgoing.begin(comm, endpoint, send_plan, sent, send_stream)
        if at_once and outgoing.put and incoming is not None and incoming.stream is outgoing.stream:
            incoming.launch_soon(outgoing)
        outgoing.signal_ready()


def _leave(incoming: Incoming | None, outgoing: Outgoing | None, status: MPI.Status | None = None) -> None:
    """After an exception in a call, let its messages complete without the call."""
    if incoming is not None:
        incoming.leave(status)
    if outgoing is not None:
        outgoing.leave()


def copied(comm: MessageBase, operation: str, buf: Any, dest: int, tag: int) -> Side:
    """Copy a buffer; return the plan that sends the copy, and the copy.

    A copy is needed because the received message may overwrite the buffer before the other rank has read it.
    """
    endpoint = comm.endpoint
    dest, tag = endpoint.check_send(operation, dest, tag)
    if dest == MPI.PROC_NULL:
        return NOTHING, None
    plan = planned(comm, operation, buf, MPI.ANY_SOURCE, MPI.ANY_TAG, writable=True)
    assert plan is not None
    buffer, stream = plan.buffer, stream_of(endpoint, plan)
    if isinstance(buffer, TypedBuffer):
        buffer.pack(endpoint, stream)
        address, copy = buffer.address, buffer.memory
    else:
        copy = endpoint.device.allocate_temporary(max(buffer.nbytes, 1), stream)
        address = copy.address
        endpoint.device.copy(address, buffer.address, buffer.nbytes, stream)
    own = Buffer(address, buffer.count, buffer.datatype, buffer.shape, False, buffer.stream, copy)
    return plan_of(endpoint, operation, own, dest, tag), copy


class _Exchange(Work):
    """A receive and a send that complete together."""

    def __init__(self, receiving: MPI.Request, sending: MPI.Request) -> None:
        self._receiving, self._sending, self._status = receiving, sending, MPI.Status()

    @property
    def caller(self) -> Any:
        works = [request._work for request in (self._receiving, self._sending) if isinstance(request, Request)]
        return works[0].caller if works else None

    def finish(self) -> None:
        self.active = False
        try:
            # Do not wait twice, because a second wait would return an empty status.
            if self._receiving:
                self._receiving.Wait(self._status)
        finally:
            self._sending.Wait()

    def is_over(self) -> bool:
        # Call both, because each call makes progress for its message.
        return all([has_come(self._receiving), has_come(self._sending)])

    def fill(self, status: MPI.Status) -> None:
        copy_status(status, self._status)

    def abandon(self) -> None:
        """Free both requests; their messages continue."""
        for request in (self._receiving, self._sending):
            if request:
                request.Free()

    def drop(self) -> None:
        """Let both messages continue without the request; a destructor calls this.

        A copy of the handle may still complete both. MPI itself progresses messages of host arrays.
        """
        for request in (self._receiving, self._sending):
            if isinstance(request, Request) and request.is_active:
                request._work.drop()
