"""Collectives inside `jax.jit`; see `pyncclx.jax`."""

from __future__ import annotations

import operator
from typing import Any

import jax.numpy as jnp
from mpi4py import MPI

from ..arrays.buffers import Buffer
from ..collectives.arguments import check_root
from ..operations import COLLECTIVES, PAIR
from .adjoints import differentiate_sum
from .primitives import Call, define, like
from .statics import check_operator, comm_of, op_of

__all__ = ["allgather", "allreduce", "alltoall", "barrier", "bcast", "gather", "reduce", "scan", "scatter"]


class Collective:
    """A collective's primitive, made from its row in the table of operations.

    It has an argument and a result. A rank that uses only one of its two buffers has no use for the other array: there
    the result is empty, or the argument is not read.
    """

    def __init__(self, name: str) -> None:
        self.row = COLLECTIVES[name]
        is_rooted = self.row.buffers != PAIR or self.row.on_all_ranks
        batch = None if is_rooted else self._batch
        self.primitive = define(name.lower(), self._outputs, self._run, batch=batch)

    def call(self, x: Any, comm: MPI.Intracomm | None, **given: Any) -> Any:
        """Check the arguments, and bind the primitive.

        Return the result, or `x` on a rank that uses no receive buffer.
        """
        x, name = jnp.asarray(x), self.row.name
        if "op" in given:
            given["op"] = op_of(given["op"])
            check_operator(given["op"], x, name)
        static = comm_of(comm)
        if "root" in given:
            given["root"] = check_root(static.value, name, operator.index(given["root"]))
        sends, receives = self._uses(static.value, given)
        size = static.value.size
        if sends and PAIR[0] in self.row.blocks and x.shape[:1] != (size,):
            raise ValueError(f"{name} input must have shape (nproc, ...): it has {x.shape}, and there are {size} ranks")
        (result,) = self.primitive.bind(x, comm=static, **given)
        return result if receives else x

    def _uses(self, comm: Any, given: dict[str, Any]) -> tuple[bool, bool]:
        """Return whether this rank uses its send buffer and its receive buffer."""
        is_root, everywhere = comm.rank == given.get("root"), self.row.on_all_ranks
        if self.row.buffers != PAIR:  # Bcast: root sends, and the other ranks receive
            return is_root, not is_root
        return is_root or everywhere in ("", PAIR[0]), is_root or everywhere in ("", PAIR[1])

    def _outputs(self, x: Any, **given: Any) -> list[Any]:
        """Return the type of the result, by the buffers that have a block for each rank."""
        comm, shape = given["comm"].value, x.shape
        sends, receives = self._uses(comm, given)
        if not receives:
            shape = (0,)
        elif self.row.blocks == PAIR[:1] and sends:
            shape = shape[1:]
        elif self.row.blocks == PAIR[1:]:
            shape = (comm.size, *shape)
        return [like(shape, x)]

    def _run(self, call: Call) -> None:
        """Call the communicator's method, unless there is nothing to move."""
        (x,), (result,) = call.ins, call.outs
        if not (x.nbytes or result.nbytes):
            return
        sends, receives = self._uses(call.comm, call.given)
        sent, received = self._argument(x) if sends else None, self._argument(result) if receives else None
        buffers = [sent, received] if self.row.buffers == PAIR else [sent if sends else received]
        getattr(call.comm, self.row.name)(*buffers, **call.given)

    def _argument(self, array: Buffer) -> Any:
        """Return a buffer argument: elements if the operation reduces, else bytes."""
        return array.owner if self.row.op is None else [array.owner, array.datatype.mpi or array.datatype]

    def _batch(self, primitive: Any, args: Any, axes: Any, **given: Any) -> Any:
        """Batch the call; the batch follows the axis of the ranks."""
        before, after = (int(buffer in self.row.blocks) for buffer in PAIR)
        return primitive.bind(jnp.moveaxis(args[0], axes[0], before), **given), [after]


_ALLGATHER, _ALLREDUCE, _ALLTOALL = map(Collective, ("Allgather", "Allreduce", "Alltoall"))
_BCAST, _GATHER, _REDUCE, _SCAN, _SCATTER = map(Collective, ("Bcast", "Gather", "Reduce", "Scan", "Scatter"))
differentiate_sum(_ALLREDUCE.primitive)
barrier_p = define("barrier", lambda **given: [], lambda call: call.comm.Barrier(device=call.on_gpu))


def allreduce(x: Any, op: Any, *, comm: MPI.Intracomm | None = None) -> Any:
    """Return the reduction of all ranks' arrays; JAX differentiates sums.

    The transpose is the identity, as in mpi4jax: all ranks are supposed to compute the same function of the result.

    Parameters
    ----------
    x : array, equal shape and dtype on all ranks
    op : MPI.Op, pyncclx.Op or pyncclx.AVG
    comm : MPI.Intracomm, default MPI.COMM_WORLD
        Compiled programs use a duplicate of it, which is made when JAX first traces a call with the communicator. This
        is collective over the communicator.

    Returns
    -------
    array, of the shape and dtype of `x`

    Raises
    ------
    TypeError, MPI.Exception
        While JAX traces the call, if `op` is not an operator, or is not defined on the elements.

    Examples
    --------
    >>> total = jax.jit(lambda x: allreduce(x, MPI.SUM))  # doctest: +SKIP
    """
    return _ALLREDUCE.call(x, comm, op=op)


def allgather(x: Any, *, comm: MPI.Intracomm | None = None) -> Any:
    """Return all ranks' arrays, stacked in rank order.

    Parameters
    ----------
    x : array, equal shape and dtype on all ranks
    comm : MPI.Intracomm, default MPI.COMM_WORLD

    Returns
    -------
    array, shape (size, \\*x.shape)
    """
    return _ALLGATHER.call(x, comm)


def alltoall(x: Any, *, comm: MPI.Intracomm | None = None) -> Any:
    """Send ``x[r]`` to rank r; return the received blocks, in rank order.

    Parameters
    ----------
    x : array, shape (size, ...), equal shape and dtype on all ranks
    comm : MPI.Intracomm, default MPI.COMM_WORLD

    Returns
    -------
    array, of the shape and dtype of `x`

    Raises
    ------
    ValueError
        If the first dimension of `x` does not have the length size.
    """
    return _ALLTOALL.call(x, comm)


def barrier(*, comm: MPI.Intracomm | None = None) -> None:
    """Make later calls wait until all ranks have called this function.

    On a GPU the stream waits, and the host does not.

    Parameters
    ----------
    comm : MPI.Intracomm, default MPI.COMM_WORLD
    """
    barrier_p.bind(comm=comm_of(comm))


def bcast(x: Any, root: int, *, comm: MPI.Intracomm | None = None) -> Any:
    """Return root's array on every rank.

    Parameters
    ----------
    x : array, equal shape and dtype on all ranks; only root's elements are used
    root : int
    comm : MPI.Intracomm, default MPI.COMM_WORLD
    """
    return _BCAST.call(x, comm, root=root)


def gather(x: Any, root: int, *, comm: MPI.Intracomm | None = None) -> Any:
    """Return all ranks' arrays on root, stacked in rank order, and `x` elsewhere.

    Parameters
    ----------
    x : array, equal shape and dtype on all ranks
    root : int
    comm : MPI.Intracomm, default MPI.COMM_WORLD

    Returns
    -------
    array, shape (size, \\*x.shape) on root
    """
    return _GATHER.call(x, comm, root=root)


def scatter(x: Any, root: int, *, comm: MPI.Intracomm | None = None) -> Any:
    """Return ``x[r]`` of root's array on each rank r.

    Parameters
    ----------
    x : array, shape (size, ...) on root; elsewhere an array of the shape and dtype of the result
    root : int
    comm : MPI.Intracomm, default MPI.COMM_WORLD

    Raises
    ------
    ValueError
        If the first dimension of root's array does not have the length size.
    """
    return _SCATTER.call(x, comm, root=root)


def reduce(x: Any, op: Any, root: int, *, comm: MPI.Intracomm | None = None) -> Any:
    """Return the reduction of all ranks' arrays on root, and `x` elsewhere.

    Parameters
    ----------
    x : array, equal shape and dtype on all ranks
    op : MPI.Op, pyncclx.Op or pyncclx.AVG
    root : int
    comm : MPI.Intracomm, default MPI.COMM_WORLD
    """
    return _REDUCE.call(x, comm, op=op, root=root)


def scan(x: Any, op: Any, *, comm: MPI.Intracomm | None = None) -> Any:
    """Return the reduction of the arrays of rank 0 to this rank.

    Parameters
    ----------
    x : array, equal shape and dtype on all ranks
    op : MPI.Op or pyncclx.Op
    comm : MPI.Intracomm, default MPI.COMM_WORLD
    """
    return _SCAN.call(x, comm, op=op)
