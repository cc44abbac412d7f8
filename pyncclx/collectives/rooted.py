"""Arguments of operations with a root, which alone has the buffer for all ranks."""

from __future__ import annotations

from typing import Any

from mpi4py import MPI

from .. import backends
from ..arrays.buffers import Buffer, resolve
from ..arrays.places import on_host, where
from ..arrays.vectors import integer
from ..errors import MPIError
from ..launch.call import is_in_place


def check_root(comm: MPI.Comm, operation: str, root: Any) -> int:
    """Return `root` as an integer; raise MPI.Exception of class ERR_ROOT unless it is a rank."""
    rank = integer(root)
    if not 0 <= rank < comm.size:
        raise MPIError(MPI.ERR_ROOT, f"{operation}: root is {rank}, the communicator's ranks are 0 to {comm.size - 1}")
    return rank


def rooted_on_host(comm: MPI.Comm, root: int, single: Any, whole: Any) -> bool:
    """Whether a rooted operation is mpi4py's: `single` is the buffer of every rank, `whole` matters at root only."""
    return on_host(single, whole if comm.rank == root or where(single) is None else None)


def resolve_elsewhere(comm: MPI.Comm, spec: Any, operation: str, argument: str) -> Buffer:
    """Resolve the buffer of a rank other than root: a "sendbuf", or the "recvbuf" of a scatter.

    Raises
    ------
    MPI.Exception
        Class ERR_ARG if it is in place, which only root's can be.
    TypeError, ValueError, KeyError, BufferError, NotSupported
        As `buffers.resolve`.
    """
    if is_in_place(spec):
        text = f"{operation}: {argument} is {spec!r} on rank {comm.rank}; only root's can be in place"
        raise MPIError(MPI.ERR_ARG, text)
    return resolve(spec, f"{operation}: {argument}", writable=argument == "recvbuf", device=backends.select())
