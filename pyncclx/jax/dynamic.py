"""An exchange of rows between all ranks, with counts that are traced values."""

from __future__ import annotations

import functools
import math
import operator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from mpi4py import MPI

from ..arrays.buffers import Buffer
from ..arrays.datatypes import TABLE
from .primitives import Call, define
from .statics import Static, comm_of

__all__ = ["alltoallv"]

_OVERFLOWS = ("raise", "drop")


def _rows(array: Buffer) -> Buffer:
    """Return an array as rows of bytes."""
    nbytes = math.prod(array.shape[1:]) * array.datatype.itemsize
    return replace(array, count=array.nbytes, datatype=TABLE["uint8"], shape=(array.shape[0], nbytes))


def _numbers(array: Buffer) -> Buffer:
    """Return an array of pairs of 32-bit words as 64-bit integers."""
    return replace(array, count=array.shape[0], datatype=TABLE["int64"], shape=array.shape[:1])


def _alltoallv(call: Call) -> None:
    call.check_device("alltoallv")
    x, counts, displs, _, *places = call.ins
    result, stored = call.outs
    received: Any = (_numbers(stored), _numbers(places[0])) if places else _numbers(stored)
    call.comm.Alltoallv(
        [_rows(x), (_numbers(counts), _numbers(displs))],
        [_rows(result), received],
        layout="placed" if places else "packed",
        overflow=_OVERFLOWS[call.given["overflow"]],
    )


alltoallv_p = define(
    "alltoallv", lambda x, counts, displs, into, *places, **given: [into, counts], _alltoallv, aliases={3: 0}
)


def _words(counts: Any) -> list[Any]:
    """Return counts of rows that follow each other, and where each rank's rows begin.

    Both have a pair of words for each number, which is a 64-bit integer in memory.
    """
    return [jnp.stack([numbers, numbers >> 31], 1) for numbers in (counts, jnp.cumsum(counts) - counts)]


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def _exchange(x: Any, counts: Any, capacity: int, overflow: int, static: Static) -> Any:
    into = jnp.zeros((capacity, *x.shape[1:]), x.dtype)
    rows, stored = alltoallv_p.bind(x, *_words(counts), into, comm=static, overflow=overflow)
    return rows, stored[:, 0]


def _forward(x: Any, counts: Any, *given: Any) -> Any:
    rows, stored = _exchange(x, counts, *given)
    return (rows, stored), (counts, stored, jnp.zeros_like(x))


def _backward(capacity: int, overflow: int, static: Static, kept: Any, cotangents: Any) -> Any:
    """Send gradients back to the rows' senders; dropped rows have zero gradients."""
    counts, stored, into = kept
    _, places = _words(counts)
    drop = _OVERFLOWS.index("drop")
    back, _ = alltoallv_p.bind(cotangents[0], *_words(stored), into, places, comm=static, overflow=drop)
    return back, None


_exchange.defvjp(_forward, _backward)


def alltoallv(
    x: Any, counts: Any, capacity: int, *, comm: MPI.Intracomm | None = None, overflow: str = "raise"
) -> tuple[Any, Any]:
    """Send each rank some rows, with traced counts; return the received rows.

    JAX differentiates it in reverse mode: the gradients of received rows return to the ranks that have sent them.

    Parameters
    ----------
    x : array, shape (rows, ...)
        The rows for rank 0, for rank 1 and so on follow each other. Further rows are not sent.
    counts : array of integers, shape (size,)
        How many rows are sent to each rank. On a GPU the counts are not copied to the host.
    capacity : int
        How many rows the result has. Ranks may pass different numbers.
    comm : MPI.Intracomm, default MPI.COMM_WORLD
    overflow : {"raise", "drop"}
        If more rows arrive than fit, those that do not fit are dropped. "raise": a later call on this rank raises
        `pyncclx.CapacityExceeded`, as a `JaxRuntimeError`.

    Returns
    -------
    rows : array, shape (capacity, \\*x.shape[1:])
        The rows from rank 0, from rank 1 and so on follow each other; zeros follow the last one.
    received : array of int32, shape (size,)
        How many rows of each rank were stored.

    Raises
    ------
    TypeError, ValueError
        While JAX traces the call, if counts are not integers, a shape is wrong, or an option is not valid.

    Examples
    --------
    >>> jitted = jax.jit(alltoallv, static_argnums=2)  # doctest: +SKIP
    >>> rows, received = jitted(tokens, counts, 1024)  # doctest: +SKIP
    """
    x, counts, static = jnp.asarray(x), jnp.asarray(counts), comm_of(comm)
    size, capacity = static.value.size, operator.index(capacity)
    if counts.shape != (size,) or x.ndim == 0 or capacity < 0:
        raise ValueError(
            f"alltoallv: x has the shape {x.shape}, counts {counts.shape}, and capacity is {capacity}; "
            f"expecting (rows, ...), ({size},), and a number of rows"
        )
    if not jnp.issubdtype(counts.dtype, jnp.integer):
        raise TypeError(f"alltoallv: counts are {counts.dtype}; expecting integers")
    if overflow not in _OVERFLOWS:
        raise ValueError(f"alltoallv: overflow is {overflow!r}; it can be 'raise' or 'drop'")
    rows, received = _exchange(x, counts.astype(jnp.int32), capacity, _OVERFLOWS.index(overflow), static)
    return rows, received
