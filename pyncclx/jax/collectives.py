"""Collectives inside `jax.jit`; see `pyncclx.jax`."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from mpi4py import MPI

from .adjoints import allreduce_p
from .primitives import Call, as_bytes, as_numbers, at_axis_0, batch_alike, define, like
from .statics import check_blocks, check_operator, comm_of, op_of, rank_of

__all__ = ["allgather", "allreduce", "alltoall", "barrier", "bcast", "gather", "reduce", "scan", "scatter"]


# ---- what XLA calls --------------------------------------------------------------------------------------------------


def _allgather(call: Call) -> None:
    if call.ins[0].nbytes:
        call.comm.Allgather(as_bytes(call.ins[0]), as_bytes(call.outs[0], call.comm.size))


def _alltoall(call: Call) -> None:
    if call.ins[0].nbytes:
        size = call.comm.size
        call.comm.Alltoall(as_bytes(call.ins[0], size), as_bytes(call.outs[0], size))


def _bcast(call: Call) -> None:
    array = call.ins[0] if call.is_root else call.outs[0]
    if array.nbytes:
        call.comm.Bcast(as_bytes(array), call.given["root"])


def _gather(call: Call) -> None:
    if call.ins[0].nbytes:
        gathered = as_bytes(call.outs[0], call.comm.size) if call.is_root else None
        call.comm.Gather(as_bytes(call.ins[0]), gathered, call.given["root"])


def _scatter(call: Call) -> None:
    if call.outs[0].nbytes:
        parts = as_bytes(call.ins[0], call.comm.size) if call.is_root else None
        call.comm.Scatter(parts, as_bytes(call.outs[0]), call.given["root"])


def _reduce(call: Call) -> None:
    if call.ins[0].nbytes:
        total = as_numbers(call.outs[0]) if call.is_root else None
        call.comm.Reduce(as_numbers(call.ins[0]), total, call.given["op"], call.given["root"])


def _scan(call: Call) -> None:
    if call.ins[0].nbytes:
        call.comm.Scan(as_numbers(call.ins[0]), as_numbers(call.outs[0]), call.given["op"])


def _barrier(call: Call) -> None:
    call.comm.Barrier(device=call.on_gpu)


# ---- primitives ------------------------------------------------------------------------------------------------------


def _at_root(x: Any, shape: tuple[int, ...], given: dict[str, Any]) -> list[Any]:
    """Return the type of a result that only the root has; elsewhere it is empty."""
    return [like(shape if given["comm"].value.rank == given["root"] else (0,), x)]


def _size(given: dict[str, Any]) -> int:
    return int(given["comm"].value.size)


def _bcast_outputs(x: Any, **given: Any) -> list[Any]:
    return [like((0,) if given["comm"].value.rank == given["root"] else x.shape, x)]


def _scatter_outputs(x: Any, **given: Any) -> list[Any]:
    return [like(x.shape[1:] if given["comm"].value.rank == given["root"] else x.shape, x)]


def _batch_behind(primitive: Any, args: Any, axes: Any, **given: Any) -> Any:
    """Batch a call whose result has a first axis for the ranks."""
    (x,) = at_axis_0(args, axes)
    if primitive is alltoall_p:
        x = jnp.moveaxis(x, 0, 1)
    return primitive.bind(x, **given), [1]


allgather_p = define(
    "allgather", lambda x, **given: [like((_size(given), *x.shape), x)], _allgather, batch=_batch_behind
)
alltoall_p = define("alltoall", lambda x, **given: [x], _alltoall, batch=_batch_behind)
bcast_p = define("bcast", _bcast_outputs, _bcast)
gather_p = define("gather", lambda x, **given: _at_root(x, (_size(given), *x.shape), given), _gather)
scatter_p = define("scatter", _scatter_outputs, _scatter)
reduce_p = define("reduce", lambda x, **given: _at_root(x, x.shape, given), _reduce)
scan_p = define("scan", lambda x, **given: [x], _scan, batch=batch_alike)
barrier_p = define("barrier", lambda **given: [], _barrier)


# ---- functions -------------------------------------------------------------------------------------------------------


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
    x, static = jnp.asarray(x), op_of(op)
    check_operator(static, x, "Allreduce")
    return allreduce_p.bind(x, op=static, comm=comm_of(comm))[0]


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
    return allgather_p.bind(jnp.asarray(x), comm=comm_of(comm))[0]


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
    x, static = jnp.asarray(x), comm_of(comm)
    check_blocks(x, static.value.size, "alltoall")
    return alltoall_p.bind(x, comm=static)[0]


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
    x, static = jnp.asarray(x), comm_of(comm)
    root = rank_of(static.value, root, "Bcast: root")
    result = bcast_p.bind(x, root=root, comm=static)[0]
    return x if static.value.rank == root else result


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
    x, static = jnp.asarray(x), comm_of(comm)
    root = rank_of(static.value, root, "Gather: root")
    result = gather_p.bind(x, root=root, comm=static)[0]
    return result if static.value.rank == root else x


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
    x, static = jnp.asarray(x), comm_of(comm)
    root = rank_of(static.value, root, "Scatter: root")
    if static.value.rank == root:
        check_blocks(x, static.value.size, "Scatter")
    return scatter_p.bind(x, root=root, comm=static)[0]


def reduce(x: Any, op: Any, root: int, *, comm: MPI.Intracomm | None = None) -> Any:
    """Return the reduction of all ranks' arrays on root, and `x` elsewhere.

    Parameters
    ----------
    x : array, equal shape and dtype on all ranks
    op : MPI.Op, pyncclx.Op or pyncclx.AVG
    root : int
    comm : MPI.Intracomm, default MPI.COMM_WORLD
    """
    x, operator, static = jnp.asarray(x), op_of(op), comm_of(comm)
    check_operator(operator, x, "Reduce")
    root = rank_of(static.value, root, "Reduce: root")
    result = reduce_p.bind(x, op=operator, root=root, comm=static)[0]
    return result if static.value.rank == root else x


def scan(x: Any, op: Any, *, comm: MPI.Intracomm | None = None) -> Any:
    """Return the reduction of the arrays of rank 0 to this rank.

    Parameters
    ----------
    x : array, equal shape and dtype on all ranks
    op : MPI.Op or pyncclx.Op
    comm : MPI.Intracomm, default MPI.COMM_WORLD
    """
    x, operator = jnp.asarray(x), op_of(op)
    check_operator(operator, x, "Scan")
    return scan_p.bind(x, op=operator, comm=comm_of(comm))[0]
