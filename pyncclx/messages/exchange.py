"""Sends and receives in one call, on device arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from .. import events
from ..arrays.buffers import Buffer
from ..requests.request import Request, request_of
from ..requests.status import copy_status, status_of_no_source
from ..requests.work import Work
from .begin import begin_receive, begin_send, planned, stream_of
from .call_end import emit, wait_if_blocking
from .pending import exchange_request
from .receive import Incoming
from .send import Outgoing
from .typed import TypedBuffer

if TYPE_CHECKING:
    from .base import MessageBase
    from .endpoint import Endpoint

Side = tuple[Any, int, int, str]  # an array or buffer spec, a rank, a tag, and the name of the argument
IN_PLACE = ("Sendrecv_replace", "Isendrecv_replace")  # with one buffer, of which a copy is sent


def exchange(comm: MessageBase, operation: str, sending: Side, receiving: Side, status: MPI.Status | None) -> None:
    """Sendrecv and Sendrecv_replace."""
    began = events.begin(operation, comm) if events.listeners else None
    endpoint = comm.endpoint
    incoming, outgoing = _begin(comm, endpoint, operation, sending, receiving, at_once=True)
    try:
        if incoming is not None:
            incoming.finish(incoming.stream)
    finally:
        if outgoing is not None:
            outgoing.finish(outgoing.stream)
    if status is not None:
        copy_status(status, incoming.status if incoming else status_of_no_source())
    wait_if_blocking(endpoint, incoming, outgoing)
    if began is not None:
        emit(comm, operation, began, outgoing, incoming)


def iexchange(comm: MessageBase, operation: str, sending: Side, receiving: Side) -> Request:
    """Isendrecv and Isendrecv_replace."""
    began = events.begin(operation, comm) if events.listeners else None
    incoming, outgoing = _begin(comm, comm.endpoint, operation, sending, receiving)
    request = exchange_request(incoming, outgoing)
    if began is not None:
        emit(comm, operation, began, outgoing, incoming)
    return request


def together(receiving: MPI.Request, sending: MPI.Request) -> Request:
    """Make the request of a receive and a send, one of them of a host array; its status is the receive's."""
    return request_of(_Exchange(receiving, sending))


def _begin(
    comm: MessageBase,
    endpoint: Endpoint,
    operation: str,
    sending: Side,
    receiving: Side,
    *,
    at_once: bool = False,
) -> tuple[Incoming | None, Outgoing | None]:
    """Begin to receive, and offer what is sent; None from and to MPI.PROC_NULL.

    With `at_once` the receive is waited for next: a message that arrives soon is taken by the kernel that copies ours.
    """
    if operation in IN_PLACE:
        sending = _copied(endpoint, operation, sending)
    # Both are checked before the receive is begun, which cannot be taken back.
    send_plan = planned(endpoint, operation, *sending, writable=False)
    send_stream = None if send_plan is None else stream_of(endpoint, send_plan)
    plan = planned(endpoint, operation, *receiving, writable=True)
    incoming, outgoing = None, None
    if plan is not None:
        # Neither array names a stream: waiting once for the current stream is enough for both.
        has_waited = send_plan is not None and plan.of_current is not None and plan.of_current == send_plan.of_current
        stream = send_stream if has_waited else stream_of(endpoint, plan)
        incoming = begin_receive(comm, endpoint, plan, receiving[0], stream)
    try:
        if send_plan is not None:
            outgoing = begin_send(comm, endpoint, send_plan, sending[0], send_stream)
            if at_once and outgoing.put and incoming is not None and incoming.stream is outgoing.stream:
                incoming.launch_soon(outgoing)
            outgoing.signal_ready()
    except BaseException:
        if incoming is not None:
            incoming.cancel()
            incoming.abandon()
        raise
    return incoming, outgoing


def _copied(endpoint: Endpoint, operation: str, side: Side) -> Side:
    """The side with a copy to send: what arrives may not overwrite what the receiver of ours has still to read."""
    buf, rank, tag, name = side
    plan = planned(endpoint, operation, buf, MPI.ANY_SOURCE, MPI.ANY_TAG, name, writable=True)
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
    return own, rank, tag, name


class _Exchange(Work):
    """A receive and a send that are waited for together."""

    def __init__(self, receiving: MPI.Request, sending: MPI.Request) -> None:
        self._receiving, self._sending, self._status = receiving, sending, MPI.Status()

    def finish(self) -> None:
        self.active = False
        try:
            if self._receiving:  # of one that has been waited for, MPI's status is empty
                self._receiving.Wait(self._status)
        finally:
            self._sending.Wait()

    def is_over(self) -> bool:
        return all([self._receiving.Get_status(), self._sending.Get_status()])  # both: each call moves one on

    def fill(self, status: MPI.Status) -> None:
        copy_status(status, self._status)

    def abandon(self) -> None:
        """Let both messages go on without the request."""
        for request in (self._receiving, self._sending):
            if request:
                request.Free()

    def drop(self) -> None:
        """Let both messages go on soon; a destructor calls this. A copy of the handle may still complete both.

        Messages of host arrays go on in MPI by themselves.
        """
        for request in (self._receiving, self._sending):
            if isinstance(request, Request) and request.is_active:
                request._work.drop()
