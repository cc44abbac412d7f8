"""Allgather and Alltoall of what a row transform makes of the elements, which may be of another type."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

from ..arrays.buffers import Buffer
from ..arrays.places import on_host
from ..arrays.readers import check_c_order
from ..errors import NotSupported
from ..launch.call import Call, is_in_place
from ..launch.choice import Choice
from ..memory.layout import Layout
from ..memory.parameters import TransformedRows
from ..operators import row_transform
from ..team.base import IntraBase as Intracomm
from .arguments import resolve_recvbuf, resolve_sendbuf
from .transports import as_spans


@lru_cache  # the same few sizes come again and again
def choose(layout: Layout, nbytes: int, kernel: str) -> Choice:
    """As Allgather and Alltoall do, by the length of what arrives."""
    return as_spans(layout, kernel, nbytes)


class Arguments(NamedTuple):
    """Those of Allgather or Alltoall with a transform."""

    send: Buffer
    recv: Buffer
    applied: row_transform.Applied
    columns: int  # of a row of what is sent

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        return self.send, *self.applied.buffers, self.recv

    @property
    def signature(self) -> tuple[str, ...]:
        """What must be equal on all ranks."""
        return f"{self.recv.nbytes} bytes", *self.applied.template[:2], self.applied.name

    def rows(self, recv: int, nbytes: int) -> TransformedRows:
        """What a kernel is given to make `nbytes` at an address, or in each rank's block there."""
        send, columns, arrays = self.send.address, self.columns, self.applied.addresses
        return TransformedRows(send=send, recv=recv, nbytes=nbytes, columns=columns, arrays=arrays)


def arguments_of(
    comm: Intracomm, operation: str, sendbuf: Any, recvbuf: Any, transform: Any, algorithm: str | None
) -> Arguments:
    """Check the arguments.

    Raises
    ------
    NotSupported
        Host arrays; in place, where what is read is replaced.
    ValueError
        Counts that differ, an algorithm, an array whose rows do not follow each other.
    """
    if on_host(sendbuf, recvbuf) or is_in_place(sendbuf):
        raise NotSupported(f"{operation}: transform is for two device arrays, not for host arrays nor in place")
    if algorithm is not None:
        raise ValueError(f"{operation}: algorithm is {algorithm!r}; with transform there is one, leave it out")
    recv = resolve_recvbuf(operation, recvbuf, comm.size)
    send = resolve_sendbuf(operation, sendbuf, comm.size if operation == "Alltoall" else 1, rows=True)
    if send.count != recv.count:
        raise ValueError(
            f"{operation}: each rank sends {send.count} elements to a block of {recv.count} elements of recvbuf; "
            "make them equal"
        )
    check_c_order(send.owner, f"{operation}: sendbuf")
    types = send.datatype.cxx, recv.datatype.cxx
    applied = row_transform.apply(transform, operation, types, send.datatype, recv.datatype)
    return Arguments(send, recv, applied, math.prod(send.shape[1:] or send.shape))  # a vector is a row


def transformed(
    comm: Intracomm, operation: str, sendbuf: Any, recvbuf: Any, transform: Any, algorithm: str | None
) -> Call:
    """The call of Allgather or Alltoall with a transform; raise as `arguments_of`."""
    given = arguments_of(comm, operation, sendbuf, recvbuf, transform, algorithm)
    recv = given.recv
    return Call(
        operation=operation,
        choose=choose,
        sized=(recv.nbytes, f"{operation.lower()}_transformed"),
        template=given.applied.template,
        arguments=given.rows(recv.address, recv.nbytes).pack(),
        buffers=given.buffers,
        signature=given.signature,
    )
