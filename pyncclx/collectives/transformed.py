"""Allgather and Alltoall with a row transform, which may change the element type."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

from ..arrays.buffers import Buffer
from ..arrays.places import on_host
from ..arrays.readers import check_c_order
from ..errors import NotSupported
from ..launch.call import Call, Choice, is_in_place
from ..memory.layout import Layout
from ..memory.parameters import TransformedRows
from ..operations import COLLECTIVES
from ..operators import row_transform
from ..team.base import IntraBase as Intracomm
from .arguments import resolve_recvbuf, resolve_sendbuf
from .transports import as_spans


@lru_cache
def choose(layout: Layout, nbytes: int, kernel: str) -> Choice:
    """Choose a transport by the received bytes, as without a transform."""
    return as_spans(layout, kernel, nbytes)


class Arguments(NamedTuple):
    """The checked arguments of Allgather or Alltoall with a transform."""

    operation: str
    send: Buffer
    recv: Buffer
    applied: row_transform.Applied
    columns: int  # elements in a row of sendbuf

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        return self.send, *self.applied.buffers, self.recv

    @property
    def signature(self) -> tuple[str, ...]:
        """Values that must be equal on all ranks."""
        return f"{self.recv.nbytes} bytes", *self.applied.template[:2], self.applied.name

    def rows(self, recv: int, nbytes: int) -> TransformedRows:
        """Return the kernel argument for writing `nbytes` of rows (or blocks) at `recv`."""
        send, columns, arrays = self.send.address, self.columns, self.applied.addresses
        return TransformedRows(send=send, recv=recv, nbytes=nbytes, columns=columns, arrays=arrays)


def arguments_of(
    comm: Intracomm, operation: str, sendbuf: Any, recvbuf: Any, transform: Any, algorithm: str | None
) -> Arguments:
    """Check and return the arguments of a call with a transform.

    Raises
    ------
    NotSupported
        If an array is on the host, or the call is in place and would overwrite its input.
    ValueError
        If counts differ, an algorithm is given, or the rows of an array do not follow each other.
    """
    if on_host(sendbuf, recvbuf) or is_in_place(sendbuf):
        raise NotSupported(f"{operation}: transform is for two device arrays, not for host arrays nor in place")
    if algorithm is not None:
        raise ValueError(f"{operation}: algorithm is {algorithm!r}; with transform there is one, leave it out")
    recv = resolve_recvbuf(operation, recvbuf, comm.size)
    blocks = comm.size if "sendbuf" in COLLECTIVES[operation].blocks else 1
    send = resolve_sendbuf(operation, sendbuf, blocks, rows=True)
    if send.count != recv.count:
        raise ValueError(
            f"{operation}: each rank sends {send.count} elements to a block of {recv.count} elements of recvbuf; "
            "make them equal"
        )
    check_c_order(send.owner, f"{operation}: sendbuf")
    check_c_order(recv.owner, f"{operation}: recvbuf")
    types = send.datatype.cxx, recv.datatype.cxx
    applied = row_transform.apply(transform, operation, types, send.datatype, recv.datatype)
    # A vector is one row.
    return Arguments(operation, send, recv, applied, math.prod(send.shape[1:] or send.shape))


def transformed_call(given: Arguments) -> Call:
    """Return the call of an Allgather or Alltoall with a transform inside a node."""
    recv = given.recv
    return Call(
        operation=given.operation,
        choose=choose,
        sized=(recv.nbytes, f"{given.operation.lower()}_transformed"),
        template=given.applied.template,
        arguments=given.rows(recv.address, recv.nbytes).pack(),
        buffers=given.buffers,
        signature=given.signature,
    )
