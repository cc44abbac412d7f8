"""A call on device arrays whose arguments are checked, and the checks that operations share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mpi4py import MPI

from ..arrays.buffers import Buffer
from ..arrays.vectors import integer
from ..backends import Function
from ..errors import MPIError
from ..team.base import IntraBase as Intracomm
from ..team.team import Plan, Team
from .choice import Choice

# Gets a kernel of a name and template arguments, ready to launch. Collective at the first use.
Load = Callable[[Any, Team, str, tuple[str, ...]], Function]


@dataclass(slots=True, kw_only=True, eq=False)
class Call:
    """A call on device arrays whose arguments are checked: all that its launch needs.

    Every operation is a function that returns one; it returns None for host arrays, which mpi4py handles.
    """

    operation: str  # the method's name
    choose: Callable[..., Choice]  # of the operation: chooses by the layout and `sized`
    sized: tuple[Any, ...]  # bytes of the message, and what else the choice depends on
    template: tuple[str, ...] = ()  # of the kernel: element type and operator, if it has any
    arguments: bytes  # the kernel's, after the Team
    buffers: tuple[Buffer, ...]  # the send buffer first, the receive buffer last
    signature: tuple[Any, ...]  # what must be equal on all ranks; PYNCCLX_CHECK=1 compares it
    empty: bool = False  # on all ranks: nothing has to be launched
    ready: Callable[[Team, Any], None] | None = None  # enqueues on a stream what comes before the kernel
    settle: Callable[[Team, Plan, Any], None] | None = None  # and what follows it
    load: Load | None = None  # gets the kernel if its source is not in a file of `kernels.FILES`


def is_in_place(spec: Any) -> bool:
    """As for mpi4py, None means MPI.IN_PLACE where a send buffer belongs."""
    return spec is None or spec is MPI.IN_PLACE


def check_root(comm: Intracomm, operation: str, root: Any) -> int:
    """Return `root` as an integer; raise MPI.Exception of class ERR_ROOT unless it is a rank."""
    rank = integer(root)
    if not 0 <= rank < comm.size:
        raise MPIError(MPI.ERR_ROOT, f"{operation}: root is {rank}, the communicator's ranks are 0 to {comm.size - 1}")
    return rank


def check_equal(operation: str, send: Buffer, recv: Buffer) -> None:
    """Raise ValueError, as mpi4py does, unless both buffers of a reduction hold the same elements."""
    if send.datatype is not recv.datatype:
        raise ValueError(
            f"{operation}: mismatch in datatypes: sendbuf has {send.datatype.name}, recvbuf {recv.datatype.name}; "
            "make them equal"
        )
    if send.count != recv.count:
        raise ValueError(
            f"{operation}: mismatch in send count {send.count} and receive count {recv.count}; make them equal"
        )


def check_fits(operation: str, send_nbytes: int, recv_nbytes: int) -> None:
    """Raise MPI.Exception of class ERR_TRUNCATE unless what a rank sends is as long as the block for it."""
    if send_nbytes != recv_nbytes:
        raise MPIError(
            MPI.ERR_TRUNCATE,
            f"{operation}: each rank sends {send_nbytes} bytes to a block of {recv_nbytes} bytes of recvbuf; "
            "make them equal",
        )
