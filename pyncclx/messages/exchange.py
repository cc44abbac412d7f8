"""Sends and receives in one call, on device arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from ..buffers import Buffer
from .calls import Pending, after, begin_to_receive, isend, no_source, outgoing_of, resolved, tell
from .request import Request, request_of
from .typed import TypedBuffer

if TYPE_CHECKING:
    from ..base import Base


def exchange(
    comm: Base,
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
    endpoint.check_send(operation, dest, sendtag)  # before the receive is posted, which cannot be taken back
    to_send = None
    if dest != MPI.PROC_NULL:
        to_send = resolved(endpoint, f"{operation}: sendbuf", sendbuf, writable=False)
    incoming = begin_to_receive(comm, endpoint, operation, recvbuf, source, recvtag, "recvbuf")
    outgoing = to_send and outgoing_of(comm, endpoint, operation, *to_send, dest, sendtag)
    if outgoing is not None:
        outgoing.say_ready()
    try:
        if incoming is not None:
            incoming.finish(incoming.stream)
    finally:
        if outgoing is not None:
            outgoing.finish(outgoing.stream)
    tell(status, incoming.status if incoming else no_source())
    after(comm.state, endpoint)


def exchange_in_place(
    comm: Base, buf: Any, dest: int, sendtag: int, source: int, recvtag: int, status: MPI.Status | None
) -> None:
    """Sendrecv_replace."""
    own = _copied(comm, "Sendrecv_replace", buf)
    exchange(comm, own, dest, sendtag, buf, source, recvtag, status, "Sendrecv_replace")


def iexchange(
    comm: Base,
    sendbuf: Any,
    dest: int,
    sendtag: int,
    recvbuf: Any,
    source: int,
    recvtag: int,
    operation: str = "Isendrecv",
) -> Request:
    """Isendrecv."""
    endpoint = comm.endpoint
    endpoint.check_send(operation, dest, sendtag)  # before the receive is posted, as in `exchange`
    if dest != MPI.PROC_NULL:
        sendbuf, _ = resolved(endpoint, f"{operation}: sendbuf", sendbuf, writable=False)
    incoming = begin_to_receive(comm, endpoint, operation, recvbuf, source, recvtag, "recvbuf")
    receiving = request_of(Pending(comm, incoming, incoming.status if incoming else no_source()))
    return together(receiving, isend(comm, operation, sendbuf, dest, sendtag))


def iexchange_in_place(comm: Base, buf: Any, dest: int, sendtag: int, source: int, recvtag: int) -> Request:
    """Isendrecv_replace."""
    operation = "Isendrecv_replace"
    return iexchange(comm, _copied(comm, operation, buf), dest, sendtag, buf, source, recvtag, operation)


def together(receiving: MPI.Request, sending: MPI.Request) -> Request:
    """The request of a receive and a send; its status is the receive's."""
    return request_of(_Exchange(receiving, sending))


def _copied(comm: Base, operation: str, buf: Any) -> Buffer:
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
