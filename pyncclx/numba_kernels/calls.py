"""Calls of the collectives written in Python, with the arguments of their kernels.

`sized` differs from that of the built-in kernel's call, because a team caches plans by it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..arrays.buffers import Buffer
from ..errors import NotSupported
from ..launch.call import Call
from ..memory.parameters import AlltoallvArgs
from .choices import choose_allreduce, choose_alltoallv, choose_barrier, choose_move
from .compiled import COMBINE, ELEMENTS, function_of
from .workspace import workspace_of

if TYPE_CHECKING:
    from ..team.base import IntraBase as Intracomm

NAME = "numba"  # name of the algorithm


def wanted(algorithm: str | None) -> bool:
    """Return whether `algorithm` names the kernels written in Python."""
    return algorithm == NAME


def barrier(comm: Intracomm) -> Call:
    """Return the call of a Barrier on the device."""
    return Call(
        operation="Barrier",
        choose=choose_barrier,
        sized=(NAME,),
        arguments=workspace_of(comm, "Barrier").pack(),
        buffers=(),
        signature=(NAME,),
        load=function_of,
    )


def allreduce(comm: Intracomm, send: Buffer, recv: Buffer, reduction: Any) -> Call:
    """Return the call of an Allreduce."""
    kind = _template("Allreduce", reduction, recv)
    _check_aligned("Allreduce", send)
    _check_aligned("Allreduce", recv)
    nbytes = recv.nbytes
    return Call(
        operation="Allreduce",
        choose=choose_allreduce,
        sized=(nbytes,),
        template=kind,
        arguments=workspace_of(comm, "Allreduce").pack(send.address, recv.address, nbytes),
        buffers=(send, recv),
        signature=(recv.count, *kind, NAME),
        load=function_of,
    )


def move(comm: Intracomm, operation: str, address: int, nbytes: int, buffers: tuple[Buffer, Buffer]) -> Call:
    """Return the call of an Allgather or Alltoall, with blocks of `nbytes`."""
    return Call(
        operation=operation,
        choose=choose_move,
        sized=(operation.lower(), nbytes),
        arguments=workspace_of(comm, operation).pack(address, buffers[1].address, nbytes),
        buffers=buffers,
        signature=(f"{nbytes} bytes", NAME),
        load=function_of,
    )


def alltoallv(
    comm: Intracomm, arguments: AlltoallvArgs, buffers: tuple[Buffer, ...], signature: tuple[Any, ...]
) -> Call:
    """Return the call of an Alltoallv with counts on the device."""
    return Call(
        operation="Alltoallv",
        choose=choose_alltoallv,
        sized=(NAME,),
        arguments=workspace_of(comm, "Alltoallv").pack(*arguments.numbers()),
        buffers=buffers,
        signature=(*signature, NAME),
        load=function_of,
    )


def _template(operation: str, reduction: Any, buffer: Buffer) -> tuple[str, ...]:
    """Return element type and operator of a kernel that reduces."""
    name, op = buffer.datatype.name, getattr(reduction, "name", None)
    if name not in ELEMENTS or op not in COMBINE:
        raise NotSupported(
            f"{operation}: algorithm='numba' folds {', '.join(ELEMENTS)} by {', '.join(COMBINE)}, not {name} by {op}; "
            "leave algorithm out"
        )
    return name, op


def _check_aligned(operation: str, buffer: Buffer) -> None:
    """Raise NotSupported unless a buffer is aligned to its elements' size."""
    if buffer.address % buffer.datatype.itemsize:
        raise NotSupported(
            f"{operation}: algorithm='numba' takes elements at multiples of their {buffer.datatype.itemsize} bytes, "
            f"the array begins at {buffer.address:#x}; leave algorithm out"
        )
