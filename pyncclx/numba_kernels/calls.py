"""Calls of the collectives written in Python: their arguments, as their kernels take them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..arrays.buffers import Buffer
from ..launch.call import Call
from ..memory.parameters import AlltoallvArgs
from .choices import choose_allreduce, choose_alltoallv, choose_barrier, choose_move
from .compiled import check_aligned, function_of, pack, template
from .workspace import workspace_of

if TYPE_CHECKING:
    from ..team.base import IntraBase as Intracomm

NAME = "numba"  # of the algorithm


def wanted(algorithm: str | None) -> bool:
    """Whether `algorithm` names the kernels written in Python."""
    return algorithm == NAME


def barrier(comm: Intracomm) -> Call:
    """See `Intracomm.Barrier`."""
    return Call(
        operation="Barrier",
        choose=choose_barrier,
        sized=(NAME,),
        arguments=pack(workspace_of(comm, "Barrier")),
        buffers=(),
        signature=(NAME,),
        load=function_of,
    )


def allreduce(comm: Intracomm, send: Buffer, recv: Buffer, reduction: Any) -> Call:
    """See `Intracomm.Allreduce`."""
    kind = template("Allreduce", reduction, recv)
    check_aligned("Allreduce", send)
    check_aligned("Allreduce", recv)
    nbytes = recv.nbytes
    return Call(
        operation="Allreduce",
        choose=choose_allreduce,
        sized=(nbytes,),
        template=kind,
        arguments=pack(workspace_of(comm, "Allreduce"), send.address, recv.address, nbytes),
        buffers=(send, recv),
        signature=(recv.count, *kind, NAME),
        empty=nbytes == 0,
        load=function_of,
    )


def move(comm: Intracomm, operation: str, address: int, nbytes: int, buffers: tuple[Buffer, Buffer]) -> Call:
    """See `Intracomm.Allgather` and `Alltoall`: blocks of `nbytes`, sent from `address`."""
    return Call(
        operation=operation,
        choose=choose_move,
        sized=(operation.lower(), nbytes),
        arguments=pack(workspace_of(comm, operation), address, buffers[1].address, nbytes),
        buffers=buffers,
        signature=(nbytes, NAME),
        empty=nbytes == 0,
        load=function_of,
    )


def alltoallv(
    comm: Intracomm, arguments: AlltoallvArgs, buffers: tuple[Buffer, ...], signature: tuple[Any, ...]
) -> Call:
    """See `Intracomm.Alltoallv` with counts on the device."""
    return Call(
        operation="Alltoallv",
        choose=choose_alltoallv,
        sized=(0, NAME),
        arguments=pack(workspace_of(comm, "Alltoallv"), *arguments.numbers()),
        buffers=buffers,
        signature=(*signature, NAME),
        load=function_of,
    )
