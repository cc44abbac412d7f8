"""Arguments of reductions: buffers that hold elements of one datatype."""

from __future__ import annotations

from typing import Any

from .. import backends
from ..arrays.buffers import Buffer, resolve
from ..launch.call import is_in_place


def resolve_pair(operation: str, sendbuf: Any, recvbuf: Any) -> tuple[Buffer, Buffer]:
    """Both buffers of a reduction of vectors of one length; in place they are one.

    Raises
    ------
    ValueError
        They do not hold as many elements of one datatype.
    TypeError, KeyError, BufferError, NotSupported
        As `buffers.resolve`.
    """
    device = backends.select()
    recv = resolve(recvbuf, f"{operation}: recvbuf", writable=True, device=device)
    if is_in_place(sendbuf):
        return recv, recv
    send = resolve(sendbuf, f"{operation}: sendbuf", writable=False, device=device)
    check_same_type(operation, send, recv)
    if send.count != recv.count:
        raise ValueError(
            f"{operation}: mismatch in send count {send.count} and receive count {recv.count}; make them equal"
        )
    return send, recv


def check_same_type(operation: str, send: Buffer, recv: Buffer) -> None:
    """Raise ValueError, as mpi4py does, unless both buffers have the same datatype."""
    if send.datatype is not recv.datatype:
        raise ValueError(
            f"{operation}: mismatch in datatypes: sendbuf has {send.datatype.name}, recvbuf {recv.datatype.name}; "
            "make them equal"
        )
