"""Allgather and Alltoall of what a row transform makes of the elements, which may be of another type."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, NamedTuple

from ..arrays.buffers import Buffer
from ..arrays.places import on_host
from ..arrays.readers import in_c_order
from ..backends.compilers.numba_functions import MOST_ARRAYS
from ..errors import NotSupported
from ..launch.call import Call, is_in_place
from ..launch.choice import Choice
from ..memory.cstruct import I64, U64, CStruct
from ..memory.layout import Layout
from ..operators import row_transform
from ..team.base import IntraBase as Intracomm
from .arguments import resolve_recvbuf, resolve_sendbuf
from .transports import as_spans


@dataclass(slots=True, kw_only=True)
class TransformedArgs(CStruct):
    """`TransformedArgs` of cuda/collectives/transformed.cu after its Team."""

    send: U64
    recv: U64
    nbytes: U64  # of a rank's block of recv
    columns: I64  # elements of a row of send
    arrays: Annotated[Sequence[int], f"{MOST_ARRAYS}Q"]  # TransformArgs: the addresses of the transform's arrays


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
    def types(self) -> tuple[str, str]:
        """The C++ types of what is sent and received."""
        return self.send.datatype.cxx, self.recv.datatype.cxx

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        return self.send, *self.applied.buffers, self.recv

    @property
    def signature(self) -> tuple[str, ...]:
        """What must be equal on all ranks."""
        return f"{self.recv.nbytes} bytes", *self.types, self.applied.name


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
    send = resolve_sendbuf(operation, sendbuf, comm.size if operation == "Alltoall" else 1)
    if send.count != recv.count:
        raise ValueError(
            f"{operation}: each rank sends {send.count} elements to a block of {recv.count} elements of recvbuf; "
            "make them equal"
        )
    if not in_c_order(send.owner):
        raise ValueError(f"{operation}: sendbuf is in Fortran order; a transform takes an array in C order")
    types = send.datatype.cxx, recv.datatype.cxx
    applied = row_transform.apply(transform, operation, types, send.datatype, recv.datatype)
    return Arguments(send, recv, applied, math.prod(send.shape[1:] or send.shape))  # a vector is a row


def transformed(
    comm: Intracomm, operation: str, sendbuf: Any, recvbuf: Any, transform: Any, algorithm: str | None
) -> Call:
    """The call of Allgather or Alltoall with a transform; raise as `arguments_of`."""
    given = arguments_of(comm, operation, sendbuf, recvbuf, transform, algorithm)
    send, recv, applied, columns = given
    return Call(
        operation=operation,
        choose=choose,
        sized=(recv.nbytes, f"{operation.lower()}_transformed"),
        template=applied.template,
        arguments=TransformedArgs(
            send=send.address, recv=recv.address, nbytes=recv.nbytes, columns=columns, arrays=applied.addresses
        ).pack(),
        buffers=given.buffers,
        signature=given.signature,
    )
