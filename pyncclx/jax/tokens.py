"""Token shuffles inside `jax.jit`: the class that programs use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from mpi4py import MPI

import mpi_bootstrap

from .primitives import wait_for_programs
from .routing import combine, dispatch, part_of
from .statics import Static, comm_of, static_of

__all__ = ["Handle", "Rows", "TokenShuffle"]


class Rows(NamedTuple):
    """The rows that a dispatch sent to this rank, grouped by local expert.

    Attributes
    ----------
    data : array, shape (capacity, hidden)
        Zeros follow the last row.
    counts : array of int32, shape (local experts,)
        Number of rows of each local expert, as `jax.lax.ragged_dot` takes it.
    experts : array of int32, shape (capacity,)
        Index of each row's expert in `local_experts`; -1 past the last row.
    weights : array of float32, shape (capacity,)
        The weight of each row; 0 past the last row.
    dropped : array of int32, shape (size,)
        The number of dropped rows of each rank.
    """

    data: Any
    counts: Any
    experts: Any
    weights: Any
    dropped: Any


@dataclass(frozen=True)
class Handle:
    """The routing of a dispatch, a pytree.

    Functions that JAX transforms may take and return it.

    Attributes
    ----------
    weights : array of float32, shape (capacity,)
        The weight of each row, by which `combine` multiplies its result.
    tokens : int
        Number of tokens that this rank dispatched.
    """

    weights: Any
    table: Any
    tokens: int
    shuffle: Static


jax.tree_util.register_dataclass(Handle, data_fields=["weights", "table"], meta_fields=["tokens", "shuffle"])


class TokenShuffle:
    """Moves tokens to the ranks of their experts inside `jax.jit`, and results back.

    Create it outside `jit`; creation is collective. JAX differentiates `dispatch` and `combine` in reverse mode, once.
    Either all ranks differentiate a call, or none does. The gradients are those of the sum of all ranks' losses.

    Parameters
    ----------
    num_experts : int
        Number of experts on all ranks.
    capacity : int
        Number of rows that a rank can receive.
    hidden : int
        Number of elements of a token, a multiple of 16.
    dtype : dtype
        Type of tokens and of experts' results: bfloat16, float16 or float32.
    k : int
        Number of experts for each token.
    max_tokens : int
        Number of tokens that a rank can dispatch at once.
    overflow : {"raise", "drop"}
        Rows beyond the capacity are dropped. "raise": a later call raises `pyncclx.CapacityExceeded`, as a
        `JaxRuntimeError`. "drop": no call raises, and every local expert has an equal share of the capacity.
    placement : array of int, optional
        The rank, or ranks, of every expert. Default: expert e is on rank ``e * size // num_experts``.
    comm : MPI.Intracomm, default MPI.COMM_WORLD

    Attributes
    ----------
    local_experts : list of int
        The experts of this rank, in ascending order.

    Raises
    ------
    TypeError, ValueError, NotSupported, CollectiveMismatch
        On all ranks, as `Create_token_shuffle` does. All ranks raise an error of an earlier call on one rank, too.

    Examples
    --------
    >>> shuffle = TokenShuffle(8, 1024, 32, "float32", k=2, max_tokens=64)  # doctest: +SKIP
    >>> rows, handle = shuffle.dispatch(tokens, topk_ids, topk_weights)  # doctest: +SKIP
    >>> results = jax.lax.ragged_dot(rows.data, matrices, rows.counts)  # doctest: +SKIP
    >>> sums = shuffle.combine(results, handle)  # doctest: +SKIP
    """

    def __init__(
        self,
        num_experts: int,
        capacity: int,
        hidden: int,
        dtype: Any = "bfloat16",
        *,
        k: int,
        max_tokens: int,
        overflow: str = "raise",
        placement: Any = None,
        comm: MPI.Intracomm | None = None,
    ) -> None:
        private = comm_of(comm).value
        # Only one thread at a time may use a communicator.
        wait_for_programs()
        # One rank may have an error of an earlier call; all ranks raise it.
        mpi_bootstrap.agree(private, private.synchronize)
        sizes = {"k": k, "max_tokens": max_tokens, "overflow": overflow, "placement": placement}
        shuffle = private.Create_token_shuffle(num_experts, capacity, hidden, dtype, **sizes)
        self._static: Static = static_of("shuffle", shuffle)
        self.local_experts: list[int] = self._open().local_experts  # the first call allocates the memory

    def dispatch(self, tokens: Any, topk_ids: Any, topk_weights: Any = None) -> tuple[Rows, Handle]:
        """Send every token to the ranks of its experts.

        Collective, also for a rank without tokens.

        Parameters
        ----------
        tokens : array, shape (tokens, hidden), of the shuffle's dtype
        topk_ids : array of integers, shape (tokens, k)
            The experts of each token; -1 chooses none. After invalid numbers, which are ignored, a later call raises
            ValueError, as a `JaxRuntimeError`.
        topk_weights : array of floating point numbers, shape (tokens, k), optional
            All ranks pass weights, or none does. Default: all 1.

        Returns
        -------
        rows : Rows
        handle : Handle
            For `combine`.

        Raises
        ------
        TypeError, ValueError
            While JAX traces the call, if an array has a wrong type or shape, there are too many tokens, or the shuffle
            has been freed.
        """
        shuffle, count = self._open(), len(tokens)
        tokens = _checked(tokens, "dispatch: tokens", (count, shuffle.hidden), jnp.dtype(shuffle.dtype).type)
        ids = _checked(topk_ids, "dispatch: topk_ids", (count, shuffle.k), jnp.integer).astype(jnp.int32)
        weights: tuple[Any, ...] = ()
        if topk_weights is not None:
            checked = _checked(topk_weights, "dispatch: topk_weights", ids.shape, jnp.floating)
            weights = (checked.astype(jnp.float32),)
        if count > shuffle.max_tokens:
            raise ValueError(f"dispatch: {count} tokens, but max_tokens is {shuffle.max_tokens}; send them in parts")
        data, row_weights, table = dispatch(tokens, ids, weights, self._static)
        counts, experts, dropped = (part_of(self._static, table, name) for name in ("counts", "row_experts", "dropped"))
        rows = Rows(data, counts, experts, row_weights, dropped)
        return rows, Handle(row_weights, table, count, self._static)

    def combine(self, expert_out: Any, handle: Handle, *, weighted: bool = True) -> Any:
        """Send results back, and add up the results of each token. Collective.

        Parameters
        ----------
        expert_out : array, shape (capacity, hidden), of the shuffle's dtype
            Results in the order of ``rows.data``. Those past the last row are not read.
        handle : Handle
            Handle of the dispatch.
        weighted : bool
            Whether to multiply results by ``handle.weights``; equal on all ranks. False: a plain sum.

        Returns
        -------
        array, shape (tokens, hidden), of the shuffle's dtype
            Sums as `pyncclx.TokenShuffle.combine` returns them, with the same bits in every run.

        Raises
        ------
        TypeError, ValueError
            While JAX traces the call, if the array has a wrong type or shape, the handle belongs to another shuffle,
            or the shuffle has been freed.
        """
        if not isinstance(handle, Handle) or handle.shuffle is not self._static:
            raise ValueError("combine: handle is not one that a dispatch of this shuffle has returned")
        shuffle = self._open()
        shape, kind = (shuffle.capacity, shuffle.hidden), jnp.dtype(shuffle.dtype).type
        results = _checked(expert_out, "combine: expert_out", shape, kind)
        weights = (handle.weights,) if weighted else ()
        return combine(results, weights, handle.table, handle.tokens, self._static)

    def _open(self) -> Any:
        """Return the library's shuffle; raise ValueError if it has been freed."""
        self._static.value.memory()
        return self._static.value

    def Free(self) -> None:
        """Wait for compiled programs, and release the memory.

        Collective; call it outside `jit`.
        """
        wait_for_programs()
        self._static.value.Free()


def _checked(array: Any, name: str, shape: tuple[int, ...], kind: Any) -> Any:
    """Return an argument as an array; raise unless its shape and type are as expected."""
    array = jnp.asarray(array)
    if array.shape != shape:
        raise ValueError(f"{name} has the shape {array.shape}; expecting {shape}")
    if not jnp.issubdtype(array.dtype, kind):
        raise TypeError(f"{name} is an array of {array.dtype}; expecting {kind.__name__}")
    return array
