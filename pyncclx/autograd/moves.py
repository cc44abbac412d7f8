"""The communication of each function of `pyncclx.autograd`, without gradients.

Each move takes a tensor, a communicator and two dimensions: the dimension that it divides, and the dimension along
which it joins parts. Only `exchanged` allows two different ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["MOVES", "Dims", "Tensor"]

Tensor = Any
Dims = tuple[int, int]


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
    """Return all ranks' tensors, one behind the other along a dimension."""
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
    """Send part i to rank i, and put together what arrived, by rank."""
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
