"""Sends and receives in one call, on device arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from ..arrays.buffers import Buffer
from ..requests.request import Request, request_of
from .calls import Pending, after, begin_to_receive, no_source, outgoing_of, posted, resolved, tell
from .receive import Incoming
from .send import Outgoing
from .typed import TypedBuffer

if TYPE_CHECKING:
    from .base import MessageBase
    from .endpoint import Endpoint


def exchange(
    comm: MessageBase,
    sendbuf: Any,
    dest: int,
    sendtag: int,
    recvbuf: Any,
    source: int,
    recvtag: int,
    status: MPI.Status | None,
    operation: str = "Sendrecv",
) -> None:
    """Sendrecv."""
    endpoint = comm.endpoint
    incoming, outgoing = _begin(comm, endpoint, operation, sendbuf, dest, sendtag, recvbuf, source, recvtag, True)
    try:
        if incoming is not None:
            incoming.finish(incoming.stream)
    finally:
        if outgoing is not None:
            outgoing.finish(outgoing.stream)
    if status is not None:
        tell(status, _status_of(incoming))
    after(comm.state, endpoint)


def exchange_in_place(
    comm: MessageBase, buf: Any, dest: int, sendtag: int, source: int, recvtag: int, status: MPI.Status | None
) -> None:
    """Sendrecv_replace."""
    own = _copied(comm, "Sendrecv_replace", buf)
    exchange(comm, own, dest, sendtag, buf, source, recvtag, status, "Sendrecv_replace")


def iexchange(
    comm: MessageBase,
    sendbuf: Any,
    dest: int,
    sendtag: int,
    recvbuf: Any,
    source: int,
    recvtag: int,
    operation: str = "Isendrecv",
) -> Request:
    """Isendrecv."""
    incoming, outgoing = _begin(comm, comm.endpoint, operation, sendbuf, dest, sendtag, recvbuf, source, recvtag)
    receiving = request_of(Pending(comm, posted(incoming), _status_of(incoming)), incoming)
    return together(receiving, request_of(Pending(comm, outgoing, MPI.Status())))


def iexchange_in_place(comm: MessageBase, buf: Any, dest: int, sendtag: int, source: int, recvtag: int) -> Request:
    """Isendrecv_replace."""
    operation = "Isendrecv_replace"
    return iexchange(comm, _copied(comm, operation, buf), dest, sendtag, buf, source, recvtag, operation)


def together(receiving: MPI.Request, sending: MPI.Request) -> Request:
    """The request of a receive and a send; its status is the receive's."""
    receive = receiving.receive if isinstance(receiving, Request) else None
    return request_of(_Exchange(receiving, sending), receive)


def _begin(
    comm: MessageBase,
    endpoint: Endpoint,
    operation: str,
    sendbuf: Any,
    dest: int,
    sendtag: int,
    recvbuf: Any,
    source: int,
    recvtag: int,
    at_once: bool = False,
) -> tuple[Incoming | None, Outgoing | None]:
    """Begin to receive, and offer what is sent; None from and to MPI.PROC_NULL.

    With `at_once` the receive is waited for next: a message that comes soon is taken by the kernel that copies ours.
    """
    # Before the receive is begun, which cannot be taken back.
    dest, sendtag = endpoint.check_send(operation, dest, sendtag)
    to_send, free = None, None
    if dest != MPI.PROC_NULL:
        _, free = to_send = resolved(endpoint, f"{operation}: sendbuf", sendbuf, writable=False)
    incoming = begin_to_receive(comm, endpoint, operation, recvbuf, source, recvtag, "recvbuf", free)
    try:
        outgoing = None if to_send is None else outgoing_of(comm, endpoint, operation, *to_send, dest, sendtag)
        if outgoing is not None:
            if at_once and outgoing.put and incoming is not None and incoming.stream is outgoing.stream:
                incoming.launch_soon(outgoing)
            outgoing.say_ready()
    except BaseException:
        if incoming is not None and not incoming.launched:  # it goes on without this call
            incoming.stays_on_stream = True
            posted(incoming)
        raise
    return incoming, outgoing


def _status_of(incoming: Incoming | None) -> MPI.Status:
    return incoming.status if incoming else no_source()


def _copied(comm: MessageBase, operation: str, buf: Any) -> Buffer:
    """A copy to send: what arrives may not overwrite what the receiver of ours has still to read."""
    endpoint = comm.endpoint
    buffer, stream = resolved(endpoint, f"{operation}: buf", buf, writable=True)
    if isinstance(buffer, TypedBuffer):
        buffer.pack(endpoint, stream)
        address, copy = buffer.address, buffer.memory
    else:
        copy = endpoint.device.allocate_temporary(max(buffer.nbytes, 1), stream)
        address = copy.address
        endpoint.device.copy(address, buffer.address, buffer.nbytes, stream)
    return Buffer(address, buffer.count, buffer.datatype, buffer.shape, False, buffer.stream, copy)


class _Exchange:
    """A receive and a send that are waited for together."""

    def __init__(self, receiving: MPI.Request, sending: MPI.Request) -> None:
        self._receiving, self._sending, self._status = receiving, sending, MPI.Status()

    def finish(self) -> None:
        try:
            if self._receiving:  # once it has been waited for, MPI would tell of nothing
                self._receiving.Wait(self._status)
        finally:
            self._sending.Wait()

    def is_over(self) -> bool:
        return self._receiving.Get_status() and self._sending.Get_status()

    def fill(self, status: MPI.Status) -> None:
        tell(status, self._status)
