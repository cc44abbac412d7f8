"""Collectives as functions of a tensor; the backward pass makes the adjoint call.

There are two conventions for the loss. `copy`, `reduce`, `gather` and `scatter` assume that all ranks compute the same
loss from the same tensors, as in Megatron's tensor parallel layers; a tensor that all ranks have counts once.
`all_reduce`, `all_gather`, `reduce_scatter` and `all_to_all` assume that each rank has a tensor of its own; the
gradients are those of the sum of all ranks' losses. `all_gather` and `reduce_scatter` also begin and end a sequence
parallel region.

All ranks make the same calls in the same order, forward and backward. The gradient of a gradient works, too.

The communication of each function is a *move*. A move takes a tensor, a communicator and two dimensions: the dimension
that it divides, and the dimension along which it joins parts. Only in `exchanged` may the two differ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["all_gather", "all_reduce", "all_to_all", "copy", "gather", "reduce", "reduce_scatter", "scatter"]

Tensor = Any
Dims = tuple[int, int]

ADJOINTS = {
    "copy": "reduce",
    "reduce": "copy",
    "all_reduce": "all_reduce",
    "gather": "scatter",
    "scatter": "gather",
    "all_gather": "reduce_scatter",
    "reduce_scatter": "all_gather",
    "all_to_all": "all_to_all",
}


def same(x: Tensor, comm: Any, dims: Dims) -> Tensor:
    """Return the tensor as it is."""
    return x.view_as(x)


def summed(x: Tensor, comm: Any, dims: Dims) -> Tensor:
    """Return the sum over all ranks."""
    x = x.detach().contiguous()
    total = torch.empty_like(x)
    comm.Allreduce(x, total)
    return total


def gathered(x: Tensor, comm: Any, dims: Dims) -> Tensor:
    """Return all ranks' tensors, joined along a dimension in rank order."""
    x = x.detach().contiguous()
    parts = x.new_empty((comm.size, *x.shape))
    comm.Allgather(x, parts)
    return torch.cat(parts.unbind(), dims[1])


def own_part(x: Tensor, comm: Any, dims: Dims) -> Tensor:
    """Return a copy of this rank's part of a tensor that all ranks have."""
    return divided(x, comm, dims[0])[comm.rank].clone()


def reduce_scattered(x: Tensor, comm: Any, dims: Dims) -> Tensor:
    """Return this rank's part of the sum over all ranks."""
    parts = divided(x, comm, dims[0])
    part = torch.empty_like(parts[0])
    comm.Reduce_scatter_block(parts, part)
    return part


def exchanged(x: Tensor, comm: Any, dims: Dims) -> Tensor:
    """Send part i to rank i; return the received parts, joined in rank order."""
    parts = divided(x, comm, dims[0])
    arrived = torch.empty_like(parts)
    comm.Alltoall(parts, arrived)
    return torch.cat(arrived.unbind(), dims[1])


def divided(x: Tensor, comm: Any, dim: int) -> Tensor:
    """Return one contiguous part for each rank, stacked along a new first dimension."""
    if x.shape[dim] % comm.size:
        shape = tuple(x.shape)
        raise ValueError(f"dimension {dim} of a tensor of shape {shape} cannot be divided among {comm.size} ranks")
    return torch.stack(x.detach().chunk(comm.size, dim))


MOVES: dict[str, Callable[[Tensor, Any, Dims], Tensor]] = {
    "copy": same,
    "reduce": summed,
    "all_reduce": summed,
    "gather": gathered,
    "scatter": own_part,
    "all_gather": gathered,
    "reduce_scatter": reduce_scattered,
    "all_to_all": exchanged,
}


class Collective(torch.autograd.Function):  # type: ignore[misc]  # without PyTorch it is Any
    """A move of a tensor among ranks, whose gradient makes the adjoint move."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, name: str, comm: Any, dims: Dims) -> Tensor:
        ctx.adjoint = ADJOINTS[name], comm, dims[::-1]
        return MOVES[name](x, comm, dims)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        return Collective.apply(*gradients, *ctx.adjoint), None, None, None


def copy(x: Tensor, comm: Any) -> Tensor:
    """Return `x`, a tensor that all ranks have; the backward pass sums the gradients.

    It begins a tensor parallel region: each rank then uses the tensor with its part of the weights.

    Parameters
    ----------
    x : torch.Tensor
        The same on all ranks.
    comm : pyncclx.Intracomm

    Returns
    -------
    torch.Tensor

    Examples
    --------
    >>> hidden = copy(x, comm) @ own_columns  # doctest: +SKIP
    >>> y = reduce(hidden.relu() @ own_rows, comm)  # doctest: +SKIP
    """
    return Collective.apply(x, "copy", comm, (0, 0))


def reduce(x: Tensor, comm: Any) -> Tensor:
    """Return the sum over all ranks; the backward pass leaves the gradient unchanged.

    It ends a tensor parallel region: the sum, and the loss made of it, are the same on all ranks.

    Parameters
    ----------
    x : torch.Tensor
    comm : pyncclx.Intracomm
    """
    return Collective.apply(x, "reduce", comm, (0, 0))


def gather(x: Tensor, comm: Any, dim: int = 0) -> Tensor:
    """Return all ranks' tensors, joined; the backward pass takes this rank's part.

    Parameters
    ----------
    x : torch.Tensor
        Equal shapes on all ranks.
    comm : pyncclx.Intracomm
    dim : int
    """
    return Collective.apply(x, "gather", comm, (dim, dim))


def scatter(x: Tensor, comm: Any, dim: int = 0) -> Tensor:
    """Return this rank's part of a common tensor; the backward pass gathers the parts.

    Parameters
    ----------
    x : torch.Tensor
        The same on all ranks; the ranks divide dimension `dim`, whose length is a multiple of their number.
    comm : pyncclx.Intracomm
    dim : int
    """
    return Collective.apply(x, "scatter", comm, (dim, dim))


def all_reduce(x: Tensor, comm: Any) -> Tensor:
    """Return the sum over all ranks; the backward pass sums the gradients, too.

    Parameters
    ----------
    x : torch.Tensor
    comm : pyncclx.Intracomm
    """
    return Collective.apply(x, "all_reduce", comm, (0, 0))


def all_gather(x: Tensor, comm: Any, dim: int = 0) -> Tensor:
    """Return all ranks' tensors, joined; the backward pass is `reduce_scatter`.

    Parameters
    ----------
    x : torch.Tensor
        Equal shapes on all ranks.
    comm : pyncclx.Intracomm
    dim : int
    """
    return Collective.apply(x, "all_gather", comm, (dim, dim))


def reduce_scatter(x: Tensor, comm: Any, dim: int = 0) -> Tensor:
    """Return this rank's part of the sum over all ranks; the backward pass gathers.

    Parameters
    ----------
    x : torch.Tensor
        The ranks divide dimension `dim`, whose length is a multiple of their number.
    comm : pyncclx.Intracomm
    dim : int
    """
    return Collective.apply(x, "reduce_scatter", comm, (dim, dim))


def all_to_all(x: Tensor, comm: Any, split: int = 0, concat: int = 0) -> Tensor:
    """Send part i of a dimension to rank i; the backward pass returns the parts.

    Parameters
    ----------
    x : torch.Tensor
        The ranks divide dimension `split`, whose length is a multiple of their number.
    comm : pyncclx.Intracomm
    split, concat : int
        The dimension to divide, and the dimension along which the received parts are joined.
    """
    return Collective.apply(x, "all_to_all", comm, (split, concat))
