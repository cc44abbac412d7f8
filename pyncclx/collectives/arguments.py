"""Checks of arguments that operations share: buffers, root, name of an algorithm.

All raise what mpi4py raises for the same mistake: TypeError, ValueError, KeyError, BufferError or MPI.Exception.
"""

from __future__ import annotations

from typing import Any

from mpi4py import MPI

from .. import backends
from ..arrays.buffers import Buffer, resolve
from ..arrays.places import on_host, where
from ..arrays.vectors import integer
from ..errors import MPIError
from ..launch.call import is_in_place


def resolve_sendbuf(operation: str, spec: Any, blocks: int = 1, *, rows: bool = False) -> Buffer:
    """Return the send buffer; its count is that of one of its `blocks`."""
    return resolve(spec, f"{operation}: sendbuf", writable=False, device=backends.select(), blocks=blocks, rows=rows)


def resolve_recvbuf(operation: str, spec: Any, blocks: int = 1) -> Buffer:
    """Return the receive buffer; its count is that of one of its `blocks`."""
    return resolve(spec, f"{operation}: recvbuf", writable=True, device=backends.select(), blocks=blocks)


def resolve_pair(operation: str, sendbuf: Any, recvbuf: Any) -> tuple[Buffer, Buffer]:
    """Return send and receive buffer of a reduction; in place both are the same."""
    recv = resolve_recvbuf(operation, recvbuf)
    if is_in_place(sendbuf):
        return recv, recv
    send = resolve_sendbuf(operation, sendbuf)
    check_same_type(operation, send, recv)
    if send.count != recv.count:
        raise ValueError(
            f"{operation}: mismatch in send count {send.count} and receive count {recv.count}; make them equal"
        )
    return send, recv


def check_same_type(operation: str, send: Buffer, recv: Buffer) -> None:
    """Raise ValueError unless both buffers have the same datatype."""
    if send.datatype is not recv.datatype:
        raise ValueError(
            f"{operation}: mismatch in datatypes: sendbuf has {send.datatype.name}, recvbuf {recv.datatype.name}; "
            "make them equal"
        )


def check_fits(operation: str, send_nbytes: int, recv_nbytes: int) -> None:
    """Raise MPI.Exception (ERR_TRUNCATE) unless a rank's data is as long as its block."""
    if send_nbytes != recv_nbytes:
        text = f"each rank sends {send_nbytes} bytes to a block of {recv_nbytes} bytes of recvbuf; make them equal"
        raise MPIError(MPI.ERR_TRUNCATE, f"{operation}: {text}")


def check_algorithm(operation: str, algorithm: str | None, *names: str) -> None:
    """Raise ValueError unless `algorithm` is one of the names, or None for the kernel."""
    if algorithm is not None and algorithm not in names:
        known = " or ".join(map(repr, names))
        raise ValueError(f"{operation}: algorithm is {algorithm!r}; it can be {known}, or None for the kernel")


def check_root(comm: MPI.Comm, operation: str, root: Any) -> int:
    """Return `root` as an integer; raise MPI.Exception (ERR_ROOT) if it is no rank."""
    rank = integer(root)
    if not 0 <= rank < comm.size:
        raise MPIError(MPI.ERR_ROOT, f"{operation}: root is {rank}, the communicator's ranks are 0 to {comm.size - 1}")
    return rank


def rooted_on_host(single: Any, whole: Any) -> bool:
    """Return whether a rooted operation has host buffers, which mpi4py handles.

    `single` is the buffer that every rank passes; it decides. If it is in place or has no memory, `whole` does, the
    buffer that matters at root only.
    """
    return on_host(single) and (where(single) is not None or on_host(whole))


def check_not_in_place(comm: MPI.Comm, operation: str, argument: str, spec: Any) -> None:
    """Raise MPI.Exception (ERR_ARG) for a buffer in place on a rank other than root."""
    if is_in_place(spec):
        text = f"{operation}: {argument} is {spec!r} on rank {comm.rank}; only root's can be in place"
        raise MPIError(MPI.ERR_ARG, text)
