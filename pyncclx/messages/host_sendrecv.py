"""Calls that send one host array and receive another with any tag.

A handshake message may take such a receive. One request of MPI for both would then wait for the send. If the peer's
request has met a handshake message, too, both ranks would wait for ever. So each side has a request of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from .host_receive import ireceive, receive, take_back
from .unsent import going_on

if TYPE_CHECKING:
    from .base import MessageBase


def begin_both(
    comm: MessageBase, sendbuf: Any, dest: int, sendtag: int, recvbuf: Any, source: int
) -> tuple[MPI.Request, MPI.Request]:
    """Begin to receive a host array with any tag, and to send another.

    Return both requests.
    """
    receiving = ireceive(comm, lambda view: MPI.Comm.Irecv(comm, view, source, MPI.ANY_TAG), recvbuf)
    return receiving, _sending(comm, sendbuf, dest, sendtag, receiving, recvbuf)


def sendrecv(
    comm: MessageBase, sendbuf: Any, dest: int, sendtag: int, recvbuf: Any, source: int, status: MPI.Status | None
) -> None:
    """Receive a host array with any tag while sending another."""
    begun: list[MPI.Request] = []

    def wait(source: int, tag: int, status: MPI.Status) -> None:
        begun[0].Wait(status)

    wait.__name__ = "Sendrecv"  # for errors
    try:
        # No signal handler runs between MPI's call and the addition to the list.
        begun += map(MPI.Comm.Irecv, (comm,), (recvbuf,), (source,), (MPI.ANY_TAG,))
        sending = _sending(comm, sendbuf, dest, sendtag, begun[0], recvbuf)
        try:
            receive(comm, wait, (source, MPI.ANY_TAG), recvbuf, status)
        finally:
            sending.Wait()
    except BaseException:
        # An interrupt may come before the call waits.
        if begun and begun[0]:
            take_back(comm, begun[0], recvbuf)
        raise


def _sending(
    comm: MessageBase, sendbuf: Any, dest: int, sendtag: int, receiving: MPI.Request, recvbuf: Any
) -> MPI.Request:
    """Begin to send. If MPI refuses, cancel the receive."""
    try:
        return going_on(MPI.Comm.Isend(comm, sendbuf, dest, sendtag))
    except BaseException:
        take_back(comm, receiving, recvbuf)
        raise
